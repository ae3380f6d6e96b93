"""What waits on lanes cost in memory, worked out by hand on two stages."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from tests.support.builders import chain, pipeline
from weft.solver.period.refuters.lane_weights import LaneWeights, Static
from weft.solver.period.structure.device_order import both_ways
from weft.solver.period.structure.lanes import Lanes
from weft.solver.problem import Problem
from weft.solver.relations.min_dist import least_distances
from weft.solver.ticks import TickProblem


def weights_of(problem: Problem, held: int) -> LaneWeights | None:
    instance = TickProblem.of(problem)
    lanes = Lanes.of(instance, both_ways(instance)[0])
    distances = least_distances(instance, sum(instance.durations) + sum(arc.lag for arc in instance.arcs))
    assert lanes is not None and distances is not None
    return LaneWeights.of(lanes, held, distances)


@pytest.mark.parametrize("activation", [1, 3])
def test_waits_share_what_the_period_leaves_of_the_memory(activation: int) -> None:
    """Each micro-batch holds the first device's memory for forwards of 1 and 1 and backwards of 2 and 2: where two have
    room, waits may come to 2 T - 6 at a period of T, in activations."""
    found = weights_of(pipeline(chain(2), activation=activation, memory=2 * activation), 1)
    assert found is not None
    assert (found.capacity, found.least, found.scale) == (2, 6, Fraction(1))
    assert [found.room(period) for period in (3, 4, 6)] == [0, 2, 6]
    [weights] = found.weights
    assert weights == (1, 1)
    assert [level is not None for level in found.levels] == [True, False]


def test_transfers_take_of_the_room_as_they_hold_memory() -> None:
    found = weights_of(pipeline(chain(2), memory=2, lag=5), 1)
    assert found is not None and found.least == 6 + 2 * 5
    assert found.lengths == ((1 + 5, 2 + 5),)


def test_waits_that_hold_the_memory_of_two_devices_count_twice() -> None:
    """Between the last forward and its backward; the second device holds for 1 + 2 by itself."""
    found = weights_of(pipeline(chain(2), memory=2), 2)
    assert found is not None
    assert (found.capacity, found.least, found.scale) == (4, 6 + 3, Fraction(1))
    assert found.weights == ((1, 1),)
    assert found.static == ((), (Static(found.rows[1].index(1), found.rows[1].index(2), 1, 2),))
    assert None not in found.levels


def test_what_a_wait_costs_no_memory_or_has_one_lane_is_left_alone() -> None:
    unlimited = pipeline(chain(2), memory=2)
    assert weights_of(replace(unlimited, devices=tuple(replace(d, memory=None) for d in unlimited.devices)), 1) is None
    assert weights_of(pipeline(chain(2), backward=None, memory=2), 1) is None
