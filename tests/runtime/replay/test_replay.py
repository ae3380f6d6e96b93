"""What ranks must replay alike."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, cast

import pytest
from hypothesis import strategies as st

from tests.support import chain, for_all, pipeline, v
from weft.runtime import Plan, ReplayOptions, Session, SessionError, plan_of
from weft.runtime.replay.replay import _require_alike, predict
from weft.runtime.replay.single_rank import RankCost
from weft.solver import Block, BlockKind, Dependency, Device, Problem, baseline


@pytest.mark.parametrize(("name", "value"), [("--transport", "shared"), ("--paced", True)])
def test_ranks_that_replay_in_another_way_are_refused_by_the_option(name: str, value: Any) -> None:
    class Two:
        agree_on = Session.agree_on

        def everywhere(self, values: Mapping[str, object], text: str) -> list[Mapping[str, object]]:
            return [values, {**values, name: value}]

    with pytest.raises(SessionError, match=f"^{name} must be the same on all ranks, .* and {value!r} on rank 1"):
        _require_alike(cast(Session, Two()), ReplayOptions(emulate=True))


def as_planned(plan: Plan, rank: int, slower: float = 1.0, own: float = 0.0) -> RankCost:
    """What a rank costs whose blocks take their planned durations, in seconds, times ``slower``."""
    blocks = {b.name: b.duration * slower for b in plan.problem.blocks if rank in b.devices}
    return RankCost(rank, blocks, plan.micro_batches * len(blocks), 0.0, own, 0.0, 0, 0, 0)


@for_all(st.integers(1, 4), st.integers(1, 6), st.floats(0.5, 3.0), st.booleans(), tries=25)
def test_ranks_that_are_as_fast_as_planned_predict_the_plan(p: int, n: int, slower: float, two: bool) -> None:
    problem = pipeline(v(p) if two else chain(p), split=(1, 1))
    plan = plan_of(baseline("greedy", problem, n))
    found = predict(plan, [as_planned(plan, rank, slower * 1e-3) for rank in range(p)], "", 1e-3)
    assert found.step is not None and math.isclose(found.step, plan.makespan * 1e-3 * slower, rel_tol=1e-9)
    assert found.planned == plan.makespan * 1e-3 and found.unmeasured == ()


def test_ranks_that_were_not_measured_count_as_planned() -> None:
    plan = plan_of(baseline("1f1b", pipeline(chain(2)), 4))
    found = predict(plan, [as_planned(plan, 1, slower=2.0)], "", 1.0)
    assert found.unmeasured == (0,)
    # rank 1 runs F and B of 2 and 4 for 4 micro-batches without a gap, between F 0 and the last B 0
    assert found.step == 1 + 4 * (2 + 4) + 2


def test_the_executors_own_time_is_spread_over_the_blocks() -> None:
    plan = plan_of(baseline("gpipe", pipeline(chain(1)), 4))
    found = predict(plan, [as_planned(plan, 0, own=4.0)], "", 1.0)
    assert found.step == pytest.approx(4 * 3 + 4.0)


def test_a_plan_without_a_unit_of_time_predicts_no_step() -> None:
    plan = plan_of(baseline("1f1b", pipeline(chain(2)), 4))
    found = predict(plan, [as_planned(plan, 0)], "", None)
    assert (found.step, found.planned, found.rows[0].planned_busy, found.rows[0].planned_peak) == (None,) * 4
    assert "predicted" not in str(found)


def test_a_planned_peak_needs_bytes_and_what_is_always_held() -> None:
    blocks = (Block("F", BlockKind.FORWARD, (0,), 1, (7,)), Block("B", BlockKind.BACKWARD, (0,), 1, (-7,), (3,),
                                                                  (Dependency("F"),)))
    plan = plan_of(baseline("gpipe", Problem("one", (Device("0"),), blocks, memory_unit="B"), 2))
    assert predict(plan, [as_planned(plan, 0)], "", None).rows[0].planned_peak is None
    held = dataclasses.replace(plan, solver={"static_memory": [100]})
    assert predict(held, [as_planned(held, 0)], "", None).rows[0].planned_peak == 100 + 14 + 3
