"""BitPipe against the paper: p uniform devices, v stages of f and b on each, for either direction."""

from __future__ import annotations

import pytest

from tests.support.builders import both_ways, loop, v, waves
from weft.solver import Problem, baseline, validate


def idle(problem: Problem, m: int) -> float:
    schedule = baseline("bitpipe", problem, m)
    return max(schedule.makespan - sum(o.end - o.start for o in order) for order in schedule.device_orders)


@pytest.mark.parametrize(("f", "b"), [(1, 1), (1, 2), (2, 3)])
@pytest.mark.parametrize("p", [2, 4, 6, 8])
def test_a_unit_of_as_many_micro_batches_as_devices(p: int, f: int, b: int) -> None:
    """Idle (p - 2) b: the share (p - 2) / (3 m + p - 2) with b = 2 f, half of Chimera's. One micro-batch is a pair."""
    for stages in (v(p), loop(p), waves(p, 2), [*v(p), *range(p)]):
        assert idle(both_ways(p, stages=stages, forward=f, backward=b), p // 2) == (p - 2) * b
    paper = (p - 2) / (3 * p + p - 2)
    assert idle(both_ways(p, stages=v(p)), p // 2) / (6 * p + 2 * (p - 2)) == pytest.approx(paper)


@pytest.mark.parametrize("p", [2, 4, 8])
def test_more_units_leave_no_gap_where_passes_are_alike(p: int) -> None:
    for units in (2, 5):
        assert idle(both_ways(p, stages=v(p), forward=1, backward=1), units * p // 2) == p - 2


@pytest.mark.parametrize("m", [1, 3, 7])
def test_any_number_of_micro_batches_within_memory(m: int) -> None:
    for memory in (None, 16, 11):
        validate(baseline("bitpipe", both_ways(4, stages=v(4), split=(2, 1), memory=memory, lag=0.25), m))
