"""Memory decided operator by operator, on ranks: it fits what there is, and trains the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runtime.captured.conftest import without_traces  # noqa: F401
from tests.support.captured_models import Checkpointed, made, token_loss
from tests.support.memory_ranks import CASES, LIMIT, batch, model
from tests.support.ranks import finished
from weft.app.pipeline.lib.options import PipelineOptions
from weft.app.pipeline.planning.memory.planned import (
    OPERATOR_MEMORY,
    ROUNDS,
    MemoryRounds,
    fullest,
    memory_notes,
    requested_decisions,
    require_memory_plan,
)
from weft.runtime.captured.captured import Captured, CaptureError
from weft.runtime.captured.memory.decisions import decisions_from_json
from weft.runtime.captured.memory.treatment import treated
from weft.runtime.captured.purity import Purity
from weft.solver.placement.memory.plan import ChainOperator, MemoryPlan, MemoryProblem
from weft.solver.placement.memory.plan_memory import NoMemoryPlan, plan_memory


@pytest.mark.slow
def test_what_was_decided_runs_on_two_ranks(tmp_path: Path) -> None:
    finished(2, "tests.support.memory_ranks", str(tmp_path))
    plain, wanted = model(), 0.0
    for part in batch().chunk(4):
        loss = token_loss(plain(part), part) / 4
        loss.backward()  # type: ignore[no-untyped-call]
        wanted += loss.item()
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2)]
    gradients = {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}
    for name in CASES:
        own = [each[name] for each in found]
        assert own[0]["digest"] == own[1]["digest"] and own[0]["decided"] == own[1]["decided"]
        assert own[0]["loss"] == pytest.approx(wanted, rel=1e-12)
        together = {key: value for each in own for key, value in each["gradients"].items()}
        assert set(together) == set(gradients)
        for key, value in gradients.items():
            assert float((together[key] - value).norm()) <= 1e-12 * float(value.norm())
        report = own[0]["report"]
        for each, planned, measured in zip(own, report["peaks"], report["measured_peaks"], strict=True):
            # Results are planned to wait as long as they do by the plan's times; a busy receiver takes them later.
            assert 0.9 * planned <= measured <= 1.05 * planned + each["under_way"]
    report, decided = found[0]["planned"]["report"], found[0]["planned"]["decided"]
    # Which of the two it is depends on what was measured of operators and of copies.
    assert (decided["recompute"] or decided["offload"]) and max(report["peaks"]) <= LIMIT
    assert any("are recomputed" in note or "are offloaded" in note for note in report["notes"])
    for name in ("checkpointed", "reentrant"):
        decided, notes = found[0][name]["decided"], found[0][name]["report"]["notes"]
        assert set(decided["calls"].values()) == set(range(4)) and set(decided["calls"]) == set(decided["recompute"])
        assert any(note.startswith("torch.utils.checkpoint is called 4 times in the model: of its ") for note in notes)


@pytest.mark.parametrize(("said", "modes", "note"), [
    ({}, {"recompute"}, "operators 40 are recomputed"), ({"memory": 1 << 30}, set(), "0 are recomputed, as memory, "),
    ({"compile": True}, set(), "0 are recomputed, as memory"), ({"memory_plan": "keep"}, set(), "0 are recomputed, as"),
    ({"memory_plan": {"layers.0": "keep"}}, {"recompute"}, " operators 20 are recomputed; the others follow mem")])
def test_checkpoints_of_the_model_are_kept_or_it_is_said(said: dict[str, Any], modes: set[str], note: str) -> None:
    torch.manual_seed(0)
    ids = torch.randint(97, (2, 8))
    captured = Captured.of(Checkpointed(2, 16, 97, 8), (ids,))
    found = requested_decisions(captured, Purity(captured), PipelineOptions(micro_batches=2, **said), None)
    assert set(found.modes.values()) - {"keep"} == modes
    told, = [each for each in memory_notes(treated(captured, found, [ids])) if "torch.utils" in each]
    assert told.startswith("torch.utils.checkpoint is called 2 times in the model: of its ") and note in told, told


def test_what_the_fullest_rank_holds_is_more_than_there_is_where_no_schedule_ran() -> None:
    assert fullest([900, 800], [1000, None], ran=True) == 900
    assert fullest([900, 800], [1000, 700], ran=True) == 800  # 100 more than the one that has least
    assert fullest([900, 800], [1000, None], ran=False) == 1010
    assert fullest([1200, 800], [1000, 1000], ran=False) == 1200


def decided(options: PipelineOptions) -> dict[str, Any]:
    case = made("gpt", 4)
    captured = Captured.of(case.model, case.args)
    return requested_decisions(captured, Purity(captured), options, None).to_json()


def test_decisions_are_asked_for_by_mode_and_by_module() -> None:
    options = PipelineOptions(micro_batches=2)
    assert decided(options) == {"recompute": [], "offload": [], "co_shard": {}}
    assert len(decided(replace(options, memory_plan="recompute"))["recompute"]) > 60
    modules = {"layers": "recompute", "layers.1": "keep", "layers.2.wide": "offload"}
    found = decided(replace(options, memory_plan=modules, co_shard={"head": 2}))
    assert found["offload"] == ["linear_10"] and "gelu" in found["recompute"] and "gelu_1" not in found["recompute"]
    assert found["co_shard"] == {"head": 2}


@pytest.mark.parametrize(("said", "why"), [("drop", "memory_plan is 'drop', it must be 'auto', one of keep"),
                                           (3, "memory_plan is 3, it must be"),
                                           ({"layers.9": "recompute"}, "'layers.9', a module of which no operator"),
                                           ({"layers.1": "drop"}, "memory_plan has 'drop' for 'layers.1', it must be")])
def test_what_says_nothing_is_refused(said: object, why: str) -> None:
    options = replace(PipelineOptions(micro_batches=2), memory_plan=said)  # type: ignore[arg-type]
    with pytest.raises(CaptureError, match=why):
        require_memory_plan(options)
        decided(options)


def test_decisions_of_another_model_are_refused() -> None:
    case = made("towers", 4)
    captured = Captured.of(case.model, case.args)
    with pytest.raises(CaptureError, match="decides of the memory of the operator gelu, which the model does not"):
        decisions_from_json({"recompute": ["gelu"]}, captured)
    with pytest.raises(CaptureError, match="not as weft writes them"):
        decisions_from_json({"co_shard": [1]}, captured)
    assert OPERATOR_MEMORY == "operator_memory"


OPERATORS = tuple(ChainOperator(f"operator {i}", 10, 20, 100, 10) for i in range(8))


def measured(rounds: MemoryRounds, peak: Callable[[MemoryPlan], int]) -> list[int]:
    """The peaks of all plans."""
    found = []
    while (plan := rounds.next_plan()) is not None:
        found.append(peak(plan))
        rounds.learn(found[-1])
    return found


def planned(memory: int) -> MemoryPlan:
    return plan_memory(MemoryProblem(OPERATORS, 2, memory, 1e9, modes=frozenset({"recompute"})))


def held(plan: MemoryPlan) -> int:
    return max(stage.memory for stage in plan.stages)


def test_a_plan_that_needs_more_than_it_says_is_made_again_for_less() -> None:
    found = measured(MemoryRounds(planned, 700), lambda plan: held(plan) + 90)
    assert found[0] > 700 and found[-1] <= 700 and len(found) < ROUNDS


def test_a_plan_of_which_no_schedule_fits_is_made_again_for_less() -> None:
    """Of 1F1B's peak alone it seemed to fit, and was the last one tried."""
    plans = []

    def peak(plan: MemoryPlan) -> int:
        plans.append(plan)
        return fullest([held(plan)], [700], ran=held(plan) <= 660)

    measured(MemoryRounds(planned, 700), peak)
    assert 660 < held(plans[0]) <= 700 and held(plans[-1]) <= 660 and len(plans) < ROUNDS


def test_a_plan_that_leaves_room_is_made_again_for_more() -> None:
    found = measured(MemoryRounds(planned, 700), lambda plan: held(plan) // 2)
    assert found[0] < found[-1] <= 700


def test_it_ends_with_the_first_that_keeps_all_or_fills_what_there_is() -> None:
    assert len(measured(MemoryRounds(planned, 5000), held)) == 1
    assert len(measured(MemoryRounds(planned, 700), lambda plan: 690)) == 1


def test_where_there_is_no_plan_the_first_reason_counts() -> None:
    rounds = MemoryRounds(planned, 10)
    assert rounds.next_plan() is None and isinstance(rounds.reason, NoMemoryPlan)
    assert "fits into 10 bytes" in str(rounds.reason) and not rounds.tried
