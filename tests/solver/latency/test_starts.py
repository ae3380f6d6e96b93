"""List schedules to begin with: valid, within the limit, and at their least latency."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings

from tests.support.builders import judged, loop, pipeline, v
from tests.support.strategies import problems
from weft.solver.latency.starts import least_latency_of, listed_within
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.problem import Problem
from weft.solver.relations.min_dist import takes_before_giving
from weft.solver.step.search import Infeasible
from weft.solver.ticks import TickProblem


@pytest.mark.parametrize("problem", [pipeline(loop(2), forward=2, backward=3, memory=4),
                                     pipeline(v(3), split=(2, 3), activation=2, memory=9)])
def test_they_are_valid_and_fast_enough(problem: Problem) -> None:
    instance = TickProblem.of(problem)
    least = Fraction(instance.heaviest_load)
    found = list(listed_within(instance, least, 2 * least))
    assert found
    for one in found:
        assert least <= one.period <= 2 * least
        judged(one)


def test_room_below_the_floor_lets_a_micro_batch_pass_without_a_wait() -> None:
    """Two rounds over two devices: at a period of 6 a micro-batch of 8 never waits."""
    instance = TickProblem.of(pipeline(loop(2), forward=2, backward=None))
    found = min(one.latency for one in listed_within(instance, Fraction(4), Fraction(6) / instance.tick))
    assert found * instance.tick == 8


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(problems())
def test_the_least_latency_of_an_order_is_no_longer_than_before(problem: Problem) -> None:
    instance = TickProblem.of(problem)
    if not instance.balanced or not takes_before_giving(instance):
        return
    try:
        known = one_at_a_time(instance)
    except (Infeasible, ValueError):
        return
    found = least_latency_of(known, 2 * known.period)
    assert found.latency <= known.latency and found.period <= 2 * known.period
    judged(found)
