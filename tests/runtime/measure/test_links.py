"""Messages that go there and back say what a link costs."""

from __future__ import annotations

from itertools import pairwise

import pytest

from weft.runtime.measure.links import LinkCost, line, round_trip
from weft.solver.timing import time_orders


def test_two_sizes_make_a_latency_and_a_time_for_each_byte() -> None:
    found = line([(1000, 3e-6), (100, 1.2e-6), (500, 9e-6)])
    assert found.latency == pytest.approx(1e-6) and found.seconds_a_byte == pytest.approx(2e-9)
    assert found.seconds(5000) == pytest.approx(11e-6)
    assert line([(100, 2e-6), (200, 1e-6)]) == LinkCost(2e-6, 0.0)  # noise, not a link that gives time back
    assert line([(64, 2e-6)]) == LinkCost(2e-6, 0.0)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_one_token_is_under_way_at_a_time(world: int) -> None:
    problem, hops = round_trip(world)
    assert len(hops) == 2 * (world - 1) and {(b, a) for a, b in hops} == set(hops)
    orders = [[(block, number) for number in range(3) for block in problem.blocks_on[device]]
              for device in range(world)]
    ends = sorted((operation.start, operation.end) for operation in time_orders(problem, 3, orders))
    assert all(begin >= end - 1e-12 for (_, end), (begin, _) in pairwise(ends))
