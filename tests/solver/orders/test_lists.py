"""List schedules: the compiled passes do what those in Python do, decision by decision."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.support.kernels import KINDS, case, compiled
from weft.solver.baselines import NotApplicable
from weft.solver.baselines.lib.amounts import Amounts
from weft.solver.baselines.lib.base import require_pipeline
from weft.solver.baselines.lib.building_block import BuildingBlock, StepChain
from weft.solver.baselines.lib.priority_rule import schedule_by_priority
from weft.solver.baselines.rivals.greedy import list_schedule, urgencies
from weft.solver.orders import lists
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem

pytestmark = compiled


def both(monkeypatch: pytest.MonkeyPatch, run: Callable[[], Any]) -> tuple[Any, Any]:
    """What ``run`` gives with the compiled passes, and without."""
    fast = run()
    with monkeypatch.context() as patch:
        patch.setattr(lists, "compiled_kernel", lambda: None)
        return fast, run()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(12))
def test_by_width(monkeypatch: pytest.MonkeyPatch, kind: str, number: int) -> None:
    drawn = case(kind, number)
    amounts = Amounts.of(drawn.problem)
    for urgency in urgencies(drawn.problem, amounts):
        for width in (1, 2, drawn.micro_batches):
            parts = [block % 2 for block in range(len(urgency))] if number % 3 == 0 else None
            fast, slow = both(monkeypatch, partial(
                list_schedule, drawn.problem, drawn.micro_batches, width, urgency, amounts, parts))
            assert fast == slow


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(12))
def test_by_priority(monkeypatch: pytest.MonkeyPatch, kind: str, number: int) -> None:
    drawn, rng = case(kind, number), random.Random(number)
    problem, amounts = drawn.problem, Amounts.of(drawn.problem)
    offsets = [0.0] * len(problem.blocks)
    for place, block in enumerate(problem.topological_order):
        offsets[block] = place + rng.random()
    for interval, lead, reserve in ((0.3, float("inf"), True), (1.7, 1.7, False), (5.0, 2.5, True)):
        fast, slow = both(monkeypatch, partial(
            schedule_by_priority, problem, drawn.micro_batches, offsets, interval, lead, amounts, reserve=reserve))
        assert fast == slow


def test_building_block(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = passed = 0
    for number in range(90):
        drawn, rng = case("pipeline", number), random.Random(number)
        try:
            chain = StepChain.of(require_pipeline(drawn.problem))
        except NotApplicable:  # blocks on several devices
            continue
        for interval in (1.0, 3.0, 9.0):
            offsets = [rng.random()]
            for _ in chain.steps[1:]:
                offsets.append(offsets[-1] + rng.choice((0.0, 1.0, 2.5)))
            block = BuildingBlock(tuple(offsets), interval, rng.choice((0.0, interval, float("inf"))),
                                  rng.choice((0.0, 1.0)))
            fast, slow = both(monkeypatch, partial(chain.run, block, 11))
            assert fast == slow
            stuck, passed = stuck + (fast is None), passed + (fast is not None)
    assert stuck > 20 and passed > 20


def test_amounts_beyond_64_bits_stay_in_python() -> None:
    large = 2**61
    problem = Problem("large", (Device("gpu", memory=4 * large),),
                      (Block("take", BlockKind.FORWARD, (0,), 1.0, memory=(large,)),
                       Block("give", BlockKind.BACKWARD, (0,), 1.0, memory=(-large,), after=(Dependency("take"),))))
    amounts = Amounts.of(problem)
    assert not amounts.tables.fit_kernel(4)
    assert list_schedule(problem, 4, 2, [0, 1], amounts) is not None
