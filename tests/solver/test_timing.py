"""Times from orders: each operation as early as its device, its producers and the links allow."""

from __future__ import annotations

import random

import pytest

from tests.support.builders import any_order, chain, pipeline
from tests.support.kernels import KINDS, case, compiled, shuffled
from weft.solver import BASELINES, Block, BlockKind, Dependency, Device, Link, Operation, Problem, Schedule
from weft.solver.timing import Begins, DeadlockError, Orders, time_orders


@pytest.fixture(params=["loop", pytest.param("kernel", marks=compiled)], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few operations, the kernel times them, or Python does."""
    monkeypatch.setattr("weft.solver.timing._MANY", 0 if request.param == "kernel" else 10**9)


def problem(*blocks: Block, devices: int = 2, links: tuple[Link, ...] = ()) -> Problem:
    return Problem("p", tuple(Device(f"gpu{d}") for d in range(devices)), blocks, links)


def block(name: str, devices: tuple[int, ...], duration: float, *after: Dependency) -> Block:
    return Block(name, BlockKind.OTHER, devices, duration, after=after)


def starts(problem: Problem, n: int, orders: Orders) -> dict[tuple[str, int], float]:
    return {(problem.blocks[o.block].name, o.micro_batch): o.start for o in time_orders(problem, n, orders)}


TWO = problem(block("a", (0,), 1), block("b", (1,), 3, Dependency("a", 0.5)))


def test_longest_path() -> None:
    assert starts(TWO, 3, [[(0, 0), (0, 1), (0, 2)], [(1, 0), (1, 1), (1, 2)]]) == {
        ("a", 0): 0, ("a", 1): 1, ("a", 2): 2, ("b", 0): 1.5, ("b", 1): 4.5, ("b", 2): 7.5}


LINKED = problem(block("a", (0,), 1), block("b", (0,), 1), block("x", (1,), 1, Dependency("a", 3, "wire")),
                 block("y", (1,), 1, Dependency("b", 1, "wire")), links=(Link("wire", 0, 1),))


def test_transfers_on_a_link_follow_their_producers() -> None:
    assert starts(LINKED, 1, [[(0, 0), (1, 0)], [(2, 0), (3, 0)]]) == {
        ("a", 0): 0, ("b", 0): 1, ("x", 0): 4, ("y", 0): 5}
    assert starts(LINKED, 1, [[(1, 0), (0, 0)], [(3, 0), (2, 0)]]) == {
        ("b", 0): 0, ("a", 0): 1, ("y", 0): 2, ("x", 0): 5}


def test_orders_against_the_dependencies_deadlock() -> None:
    crossed = problem(block("a", (0,), 1), block("b", (0,), 1, Dependency("a")), devices=1)
    with pytest.raises(DeadlockError, match="block 'a' of micro-batch 0 can never start"):
        time_orders(crossed, 1, [[(1, 0), (0, 0)]])


def test_orders_against_each_other_deadlock() -> None:
    gangs = problem(block("a", (0, 1), 1), block("b", (0, 1), 1))
    with pytest.raises(DeadlockError):
        time_orders(gangs, 1, [[(0, 0), (1, 0)], [(1, 0), (0, 0)]])


@pytest.mark.parametrize("row", [[(0, 0)], [(0, 0), (0, 0)], [(0, 0), (0, 1), (0, 1)]])
def test_incomplete_orders_are_refused(row: list[tuple[int, int]]) -> None:
    with pytest.raises(DeadlockError, match="device 'gpu0': its order holds"):
        time_orders(TWO, 2, [row, [(1, 0), (1, 1)]])


@pytest.mark.parametrize("row", [[(0, 0), (1, 1)], [(0, 0), (0, 2)], [(0, 0), (0, -1)], [(0, 0), (7, 0)]])
def test_what_does_not_belong_on_the_device_is_refused(row: list[tuple[int, int]]) -> None:
    with pytest.raises(DeadlockError):
        time_orders(TWO, 2, [row, [(1, 0), (1, 1)]])
    with pytest.raises(DeadlockError):  # a row is missing
        time_orders(TWO, 1, [[(0, 0)]])


def test_many_operations_are_timed_as_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come as a schedule holds them, so that it need not sort them."""
    chained, n = pipeline(chain(3), backward=1.5, lag=0.1), 1000
    orders = BASELINES["1f1b"].orders(chained, n)
    many = time_orders(chained, n, orders)
    schedule = Schedule(chained, n, many, 0.0)
    assert schedule.operations is many and schedule.makespan == max(operation.end for operation in many)
    monkeypatch.setattr("weft.solver.schedule._MANY", 10**9)
    few = time_orders(chained, n, orders)
    assert Schedule(chained, n, few, 0.0).operations == many
    assert {tuple(map(type, operation)) for operation in (*few, *many)} == {(int, int, float, float)}
    assert {type(operation) for operation in many} == {Operation}


@compiled
@pytest.mark.parametrize("kind", KINDS)
def test_the_kernel_times_as_the_loop_does(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, from any times on; and orders that wait in a circle are refused with the same words."""
    for number in range(40):
        some, dice = case(kind, number), random.Random(number)
        problem, n = some.problem, some.micro_batches
        begins = Begins([dice.random() for _ in problem.devices], {link.name: dice.random() for link in problem.links})
        for orders in (any_order(problem, n, dice, in_turn=True).orders, some.tables.orders(shuffled(some, number))):
            found: list[object] = []
            for least in (0, 10**9):
                monkeypatch.setattr("weft.solver.timing._MANY", least)
                try:
                    found.append(list(time_orders(problem, n, orders, begins)))
                except DeadlockError as fault:
                    found.append(str(fault))
            assert found[0] == found[1]
