"""Orders paced for what lanes share."""

from __future__ import annotations

import pytest

from tests.oracles.lanes import drawn_with_lanes
from tests.support.builders import chain, pipeline
from weft.solver.judge.validate import violations
from weft.solver.pools import PooledOrders
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem
from weft.solver.relations.fixed_order import FixedOrder
from weft.solver.relations.min_dist import pools_take_first, takes_before_giving
from weft.solver.relations.pool_times import fits_pools, paced, with_waits
from weft.solver.schedule import Schedule
from weft.solver.ticks import TickProblem
from weft.solver.timing import time_orders

#: The GPU takes 1 for a block, its network gives that back 3 later; there is room for two.
SENDER = Problem("p", (Device("gpu", 2), Device("net", lane_of="gpu")), (
    Block("f", BlockKind.FORWARD, (0,), 1, (1,)),
    Block("s", BlockKind.OTHER, (1,), 3, (-1,), (), (Dependency("f"),))))
ROWS = [[(0, m) for m in range(4)], [(1, m) for m in range(4)]]


def test_plain_orders_stay_as_they_are() -> None:
    plain = pipeline(chain(2), memory=1)
    rows = [[(0, 0), (3, 0)], [(1, 0), (2, 0)]]
    assert paced(TickProblem.of(plain), 1, rows) is rows


def test_a_block_waits_until_a_lane_has_given_back() -> None:
    instance = TickProblem.of(SENDER)
    assert not fits_pools(instance, FixedOrder(instance, 4, ROWS).start)
    slower = paced(instance, 4, ROWS)
    assert isinstance(slower, PooledOrders)
    made = Schedule(SENDER, 4, time_orders(SENDER, 4, slower), 0.0)
    assert violations(made) == []
    assert [o.start for o in made.device_orders[0]] == [0, 1, 4, 7]


def test_waits_that_are_known_are_kept() -> None:
    instance = TickProblem.of(SENDER)
    late = {**{(0, m): 4 * m for m in range(4)}, **{(1, m): 4 * m + 1 for m in range(4)}}
    orders = with_waits(instance, ROWS, late)
    assert FixedOrder(instance, 4, orders).start == late
    again = paced(instance, 4, orders)
    assert isinstance(again, PooledOrders)
    assert again.waits == orders.waits


def test_nothing_is_found_where_an_order_leaves_no_way() -> None:
    hungry = Problem("p", (Device("gpu", 1), Device("net", lane_of="gpu")), (
        Block("f", BlockKind.FORWARD, (0,), 1, (1,)), Block("g", BlockKind.FORWARD, (0,), 1, (1,)),
        Block("s", BlockKind.OTHER, (1,), 1, (-1,), (), (Dependency("f"),)),
        Block("t", BlockKind.OTHER, (1,), 1, (-1,), (), (Dependency("g"),))))
    instance = TickProblem.of(hungry)
    assert paced(instance, 1, [[(0, 0), (1, 0)], [(3, 0), (2, 0)]]) is None
    assert paced(instance, 1, [[(0, 0), (1, 0)], [(2, 0), (3, 0)]]) is not None


@pytest.mark.parametrize("number", range(0, 60, 3))
def test_earliest_times_under_orders_and_waits_fit(number: int) -> None:
    """What weft/solver/pools.py argues: waits are all that a mixed pool adds to orders."""
    problem = drawn_with_lanes(number)
    instance = TickProblem.of(problem)
    order = [(i, m) for m in range(3) for i in problem.topological_order]
    rows = [[op for op in order if d in problem.blocks[op[0]].devices] for d in range(len(problem.devices))]
    orders = paced(instance, 3, rows)
    if orders is None or not pools_take_first(instance):
        return
    fixed = FixedOrder(instance, 3, orders)
    assert fits_pools(instance, fixed.start)
    slow = with_waits(instance, rows, {op: 2 * at for op, at in fixed.start.items()})  # also where all wait for longer
    assert fits_pools(instance, FixedOrder(instance, 3, slow).start)


def test_what_is_given_before_it_is_taken_is_told_apart() -> None:
    backward = Problem("p", (Device("gpu", 2), Device("net", lane_of="gpu")), (
        Block("f", BlockKind.FORWARD, (0,), 1, (1,)), Block("s", BlockKind.OTHER, (1,), 1, (-1,))))
    assert not pools_take_first(TickProblem.of(backward))
    assert pools_take_first(TickProblem.of(SENDER))
    assert takes_before_giving(TickProblem.of(SENDER))
    kept = Problem("p", SENDER.devices, (SENDER.blocks[0], Block("s", BlockKind.OTHER, (1,), 1, (1,))))
    assert pools_take_first(TickProblem.of(kept))  # something may be left for good
    assert not takes_before_giving(TickProblem.of(kept))
