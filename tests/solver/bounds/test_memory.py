"""The memory bound by hand: what the ends lose, and what both of them may count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from tests.oracles.streams import drawn_stream
from tests.oracles.whole import least_makespan
from tests.support.class_runs import pipeline_of_lengths
from weft.solver.bounds.heads import Times
from weft.solver.bounds.makespan import makespan_bound
from weft.solver.bounds.memory import _lost, area_in, bound_in, chains_of_one
from weft.solver.problem.rounds import Rounds
from weft.solver.ticks import TickProblem


def times(*rows: Sequence[int]) -> Times:
    return np.array(rows, dtype=np.int64)


def test_room_is_lost_until_the_first_takes_fill_it() -> None:
    """Room for 2, takes of 1 at 0 and 4: one unit is idle for 4 ticks. Or nothing but the time before the first."""
    assert _lost([(np.array([0, 4]), 1)], 2, everything=True) == [(4, 4), (0, 0)]
    assert _lost([(np.array([3, 4]), 1)], 2, everything=True) == [(3 * 2 + 1, 4), (3 * 2, 3)]


def test_what_fills_the_room_ends_the_loss() -> None:
    assert _lost([(np.array([1, 2, 9]), 1)], 2, everything=True) == [(2 + 1, 2), (2, 1)]
    assert _lost([(np.array([1, 2, 9]), 1)], 3, everything=True) == [(3 + 2 + 7, 9), (3, 1)]


@pytest.mark.parametrize(("everything", "lost", "until"), [(True, 3 + 2 + 2, 4), (False, 3 + 2, 2)])
def test_unlisted_takes_may_come_from_the_last_listed_time_on(everything: bool, lost: int, until: int) -> None:
    """Takes at 0 and 4, and others at 1 and 2: where more may follow those, nothing is known to be idle after 2."""
    changes = [(np.array([0, 4]), 1), (np.array([1, 2]), 1)]
    assert _lost(changes, 4, everything)[0] == (lost, until)
    assert _lost([(np.array([0, 2]), 1), (np.array([1, 2]), 1)], 5, everything)[0] == (5 + (-1 + 3), 2)


def bound(takes: Mapping[int, int], changes: Mapping[int, int], capacity: int, area: int, head: Times, tail: Times,
          micro_batches: int = 1) -> int:
    return bound_in(takes, changes, capacity, area, micro_batches, head, tail)


def test_both_ends_and_the_work_share_the_room() -> None:
    """One block, a unit for 4 ticks, 3 before it and 5 after it: in a room of 1 they stand one after another."""
    assert bound({0: 1}, {0: 0}, 1, 4, times([3]), times([5])) == 3 + 4 + 5
    assert bound({0: 1}, {0: 0}, 2, 4, times([3]), times([5])) == 3 + 4 // 2 + 5  # the other unit may be used


def test_the_bound_is_rounded_up() -> None:
    assert bound({0: 1}, {0: 0}, 2, 5, times([0]), times([0])) == 3
    assert bound({0: 1}, {0: 0}, 3, 6, times([0]), times([0])) == 2


def test_time_that_both_ends_would_count_is_counted_once() -> None:
    """Two micro-batches, a unit each for 6 ticks in a room of 2; takes from 0 and 10 on, last uses at the end and from
    10 before it on. Each end alone loses 10; counted both, they would be 20 ticks of a step that may last 11."""
    head, tail = times([0, 10]), times([10, 0])
    assert bound({0: 1}, {0: 0}, 2, 6, head, tail, micro_batches=2) == (2 * 6 + 10) // 2
    # With more work in between both count: 2 x 15 + 10 + 10 is no less than (10 + 10) x 2.
    assert bound({0: 1}, {0: 0}, 2, 15, head, tail, micro_batches=2) == (2 * 15 + 10 + 10) // 2
    assert bound({0: 1}, {0: 0}, 2, 10, head, tail, micro_batches=2) == (2 * 10 + 10 + 10) // 2  # the two just meet


@pytest.mark.parametrize(("grid", "slots", "least"), [(2, 2, 37), (3, 2, 78), (3, 3, 70)])
def test_a_stream_needs_room_for_all_that_it_loads(grid: int, slots: int, least: int) -> None:
    """Each chunk from its load to its computation's end, a column's first to the end of its store, though each
    computation could give back what any of its column has taken before. ``least`` was proven of start times."""
    problem = drawn_stream(grid, slots, 0)
    instance = TickProblem.of(problem)
    pool, = instance.mixed_pools
    area = area_in(instance, pool.take, pool.change, chains_of_one(instance))
    assert area == sum(instance.durations)
    assert -(-area // slots) <= makespan_bound(instance, 1) <= least


@pytest.mark.parametrize("lengths", [[1, 2], [2, 1, 2], [3, 1, 1]])
def test_micro_batches_of_one_round_each_keep_their_own_memory(lengths: list[int]) -> None:
    """In the room of the longest, a micro-batch holds it from its forward to its backward on the first device: there
    only shorter ones fit beside each other. Matched with the last giver of all, the last takers would have none."""
    wide, run = pipeline_of_lengths(2, lengths, memory=max(lengths))
    problem = Rounds(wide, run).problem
    instance = TickProblem.of(problem)
    unit = instance.durations[0] // lengths[0]
    area = area_in(instance, instance.take[0], instance.change[0], chains_of_one(instance))
    assert area is not None and area >= unit * sum(6 * x * x for x in lengths) * instance.take[0][0] // lengths[0]
    least = least_makespan(problem, 1)
    assert least is not None and makespan_bound(instance, 1) / unit <= least
