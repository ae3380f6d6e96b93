"""A pass through time takes memory out of turn only where what it overtakes still fits, so it is never stuck."""

from __future__ import annotations

import pytest

from tests.oracles.lanes import drawn_with_lanes
from weft.solver.baselines import NotApplicable
from weft.solver.baselines.lib.sequential import block_order, without_lanes
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem
from weft.solver.relations.fixed_order import Op
from weft.solver.relations.pool_pass import PoolPass
from weft.solver.relations.pool_times import fits_pools
from weft.solver.ticks import TickProblem


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
