"""The executor's own time between two blocks goes to the blocks, and is not counted with messages too."""

from __future__ import annotations

import pytest

from weft.runtime.measure.fitting import executor_gaps, fit, with_gaps
from weft.runtime.plan.timeline import Measured, Timeline
from weft.solver import Block, BlockKind, Dependency, Device, Problem, time_orders

PROBLEM = Problem("two", (Device("a"), Device("b")), (
    Block("F0", BlockKind.FORWARD, (0,), 1.0), Block("F1", BlockKind.FORWARD, (1,), 2.0, after=(Dependency("F0"),))))


def timeline(gap: float, lag: float, micro_batches: int = 4) -> Timeline:
    """A run in which every block took half as long again, and the executor a gap before it."""
    found, free = [], [0.0, 0.0]
    for m in range(micro_batches):
        begin = free[0] + (gap if m else 0.0)
        free[0] = begin + 1.5
        found.append(Measured("F0", m, 0, begin, free[0]))
        begin = max(free[0] + lag, free[1] + (gap if m else 0.0))
        free[1] = begin + 3.0
        found.append(Measured("F1", m, 1, begin, free[1]))
    return Timeline("", "two", 1.0, tuple(sorted(found, key=lambda entry: entry.start)))


def test_a_plan_with_gaps_takes_what_was_measured() -> None:
    run = timeline(gap=0.25, lag=0.5)
    fitted = fit(PROBLEM, [run]).problem
    gaps = executor_gaps(fitted, [run])
    assert gaps == pytest.approx([0.25, 0.25])
    problem = with_gaps(fitted, gaps)
    assert [block.duration for block in problem.blocks] == pytest.approx([1.75, 3.25])
    assert problem.blocks[1].after[0].lag == pytest.approx(0.25)
    orders = [[(0, m) for m in range(4)], [(1, m) for m in range(4)]]
    planned = max(operation.end for operation in time_orders(problem, 4, orders))
    assert planned == pytest.approx(run.makespan + 0.25)  # the last block's own gap comes behind it


def test_a_rank_that_only_waits_has_no_gap() -> None:
    entries = (Measured("F0", 0, 0, 0.0, 1.0), Measured("F1", 0, 1, 5.0, 7.0))
    assert executor_gaps(PROBLEM, [Timeline("", "two", 1.0, entries)]) == [0.0, 0.0]
