"""A pass through time takes memory out of turn only where what it overtakes still fits, so it is never stuck."""

from __future__ import annotations

import pytest

from tests.oracles.lanes import drawn_with_lanes
from tests.support.builders import chain, pipeline
from weft.solver.baselines import NotApplicable
from weft.solver.baselines.lib.sequential import block_order, without_lanes
from weft.solver.judge.validate import violations
from weft.solver.pools import PooledOrders
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem
from weft.solver.relations.fixed_order import FixedOrder, Op
from weft.solver.relations.min_dist import pools_take_first, takes_before_giving
from weft.solver.relations.pool_pass import PoolPass, fits_pools, paced, with_waits
from weft.solver.schedule import Schedule
from weft.solver.ticks import TickProblem
from weft.solver.timing import time_orders


def passed(instance: TickProblem, order: list[Op], *, safe: bool = True) -> dict[Op, int] | None:
    return PoolPass(instance, 1 + max(m for _, m in order), instance.mixed_pools, order, safe=safe).run()


def two_loads_a_result() -> TickProblem:
    """Each of two results needs two loads; memory is for three."""
    blocks = []
    for column in "ab":
        blocks += [Block(f"{load}{column}", BlockKind.OTHER, (1,), 1, (1,)) for load in "12"]
        blocks.append(Block(f"C{column}", BlockKind.OTHER, (0,), 5, (-2,),
                            after=(Dependency(f"1{column}"), Dependency(f"2{column}"))))
    return TickProblem.of(Problem("p", (Device("gpu", 3), Device("loads", lane_of="gpu")), tuple(blocks)))


def test_loads_never_fill_what_an_earlier_computation_needs() -> None:
    """The last slot is for 1b beside Ca; 2b waits until Ca has given its two back."""
    instance = two_loads_a_result()
    found = passed(instance, [(i, 0) for i in range(6)])
    assert found == {(0, 0): 0, (1, 0): 1, (2, 0): 2, (3, 0): 2, (4, 0): 7, (5, 0): 8}
    assert fits_pools(instance, found)


def test_without_care_loads_fill_the_memory() -> None:
    """1a waits for something, and 1b and 2b overtake it: then a slot is missing for what Ca needs. With care only one
    of them does."""
    instance = two_loads_a_result()
    late = Block("late", BlockKind.OTHER, (2,), 9)
    problem = instance.problem
    first = Block("1a", BlockKind.OTHER, (1,), 1, (1,), after=(Dependency("late"),))
    third = Block("Cb", BlockKind.OTHER, (0,), 5, (-2,), after=(Dependency("1b"), Dependency("2b"), Dependency("Ca")))
    blocks = (first, *problem.blocks[1:5], third, late)
    instance = TickProblem.of(Problem("p", (*problem.devices, Device("host", lane_of="gpu")), blocks))
    order = [(i, 0) for i in (6, 0, 1, 2, 3, 4, 5)]
    assert passed(instance, order, safe=False) is None
    found = passed(instance, order)
    assert found is not None and fits_pools(instance, found)
    assert (found[1, 0], found[3, 0], found[0, 0]) == (0, 1, 9)
    assert found[4, 0] == found[2, 0] + instance.durations[2]


@pytest.mark.parametrize("number", range(60))
def test_what_fits_in_order_never_gets_stuck(number: int) -> None:
    problem = drawn_with_lanes(number, most_blocks=8, balanced=False)
    try:
        blocks = block_order(without_lanes(problem), 4)
    except NotApplicable:
        return
    instance = TickProblem.of(problem)
    found = passed(instance, [(i, m) for m in range(4) for i in blocks])
    assert found is not None and len(found) == 4 * len(blocks)
    assert fits_pools(instance, found)
    for block in instance.blocks:
        assert all(found[block, m] + instance.durations[block] <= found[block, m + 1] for m in range(3))


def test_plain_orders_stay_as_they_are() -> None:
    plain = pipeline(chain(2), memory=1)
    rows = [[(0, 0), (3, 0)], [(1, 0), (2, 0)]]
    assert paced(TickProblem.of(plain), 1, rows) is rows


#: The GPU takes 1 for a block, its network gives that back 3 later; there is room for two.
SENDER = Problem("p", (Device("gpu", 2), Device("net", lane_of="gpu")), (
    Block("f", BlockKind.FORWARD, (0,), 1, (1,)),
    Block("s", BlockKind.OTHER, (1,), 3, (-1,), (), (Dependency("f"),))))
ROWS = [[(0, m) for m in range(4)], [(1, m) for m in range(4)]]


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
