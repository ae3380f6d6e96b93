"""What devices share with their lanes: which memories are mixed, and which operations wait for what others give."""

from __future__ import annotations

from collections.abc import Sequence

from weft.solver import Operation, Schedule, time_orders
from weft.solver.pools import PooledOrders, amounts_by_device, holder, memory_waits, mixed_pools, one_after_another
from weft.solver.problem import Block, BlockKind, Dependency, Device, Number, Problem
from weft.solver.ticks import TickProblem

DEVICES = (Device("gpu", 3), Device("net", lane_of="gpu"), Device("copy", lane_of="gpu"), Device("other", 1))


def block(name: str, on: Sequence[int], duration: Number = 1, memory: Sequence[Number] = (),
          after: Sequence[str] = (), workspace: Sequence[Number] = ()) -> Block:
    return Block(name, BlockKind.OTHER, tuple(on), duration, tuple(memory), tuple(workspace),
                 tuple(map(Dependency, after)))


def problem(*blocks: Block) -> Problem:
    return Problem("p", DEVICES, blocks, (), "ms", "GiB")


#: f takes on the GPU, s sends it off over the network and gives back, g takes again.
SENT = problem(block("f", (0,), 2, [2]), block("s", (1,), 2, [-2], ["f"]), block("g", (0,), 1, [2]))


def test_a_pool_is_mixed_where_no_one_engine_runs_all_that_changes_it() -> None:
    assert holder(SENT, 0) is None
    [pool] = mixed_pools(SENT, int, int)
    assert (pool.owner, pool.engines, pool.capacity) == (0, (0, 1, 2), 3)
    assert pool.take == {0: 2, 1: 0, 2: 2}
    assert pool.change == {0: 2, 1: -2, 2: 2}
    assert [pool.given(i) for i in range(3)] == [0, 2, 0]
    assert not pool.balanced


def test_the_memory_of_one_engine_alone_stands_with_it() -> None:
    on_net = problem(block("f", (0,)), block("s", (1,), memory=[1]),
                     block("t", (1, 0), memory=[-2, 1], workspace=[0, 1]))
    assert holder(on_net, 0) == 1
    assert mixed_pools(on_net, int, int) == ()
    take, change, capacity = amounts_by_device(on_net, int, int)
    assert capacity == (None, 3, None, 1)
    assert take == ({0: 0, 2: 0}, {1: 1, 2: 2}, {}, {})
    assert change == ({0: 0, 2: 0}, {1: 1, 2: -1}, {}, {})


def test_an_unlimited_pool_is_never_mixed() -> None:
    free = Problem("p", (Device("gpu"), Device("net", lane_of="gpu")), SENT.blocks)
    assert mixed_pools(free, int, int) == ()


def test_what_takes_waits_for_the_last_that_gave_on_another_engine() -> None:
    rows = [[(0, 0), (2, 0), (0, 1), (2, 1)], [(1, 0), (1, 1)], [], []]
    start = {(0, 0): 0, (1, 0): 2, (2, 0): 4, (0, 1): 5, (1, 1): 7, (2, 1): 8}
    end = {op: at + int(SENT.blocks[op[0]].duration) for op, at in start.items()}
    waits = memory_waits(SENT, mixed_pools(SENT, int, int), rows, start, end)
    assert waits == [((1, 0), (2, 0)), ((1, 0), (0, 1)), ((1, 0), (2, 1))]
    start[2, 1] = 9
    assert memory_waits(SENT, mixed_pools(SENT, int, int), rows, start, end)[-1] == ((1, 1), (2, 1))


def test_the_orders_of_a_schedule_keep_what_its_memory_waits_for() -> None:
    times = ((0, 0, 0.0, 2.0), (1, 0, 2.0, 4.0), (2, 0, 4.0, 5.0))
    made = Schedule(SENT, 1, tuple(Operation(*entry) for entry in times), 0.0)
    orders = made.orders
    assert isinstance(orders, PooledOrders)
    assert orders.waits == (((1, 0), (2, 0)),)
    assert sorted(time_orders(SENT, 1, orders)) == sorted(made.operations)
    bare = [list(row) for row in orders]
    assert {o.block: o.start for o in time_orders(SENT, 1, bare)}[2] == 2.0  # nothing holds it then


def test_one_after_another_nothing_of_a_pool_runs_beside_another() -> None:
    pools = mixed_pools(SENT, int, int)
    orders = one_after_another(SENT, pools, [(2, 0), (0, 0), (1, 0)])
    assert orders[0] == ((2, 0), (0, 0))
    times = {o.block: o.start for o in time_orders(SENT, 1, orders)}
    assert times == {2: 0.0, 0: 1.0, 1: 3.0}


def test_the_search_sees_a_mixed_pool_in_one_place_and_no_limit_elsewhere() -> None:
    instance = TickProblem.of(SENT)
    assert instance.capacity == (None, None, None, 0)  # in units of 2 GiB
    assert len(instance.mixed_pools) == 1
    assert not instance.balanced
    merged = instance.in_sequence
    assert merged.capacity == (1, None, None, 0)
    assert merged.take[0] == {0: 1, 1: 0, 2: 1}
    assert not merged.mixed_pools
