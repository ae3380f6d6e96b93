"""The least span of an order by a linear programme, and of tiny problems by trying every order; shares no code with the
search."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from typing import Any

from ortools.linear_solver import pywraplp

from weft.solver.problem import Number, Problem
from weft.solver.timing import Orders

__all__ = ["least_span", "span_of_order"]


def least_span(problem: Problem, micro_batches: int, most_orders: int = 3000) -> float | None:
    """The least span over all orders that keep to memory, dependencies and the order of micro-batches; ``None`` where
    there is none. Raises ``OverflowError`` for more orders than ``most_orders``."""
    found = set()
    for rows in _every_order(problem, micro_batches):
        found.add(rows)
        if len(found) > most_orders:
            raise OverflowError
    return min((span_of_order(problem, micro_batches, rows) for rows in found), default=None)


def _every_order(problem: Problem, micro_batches: int) -> Iterator[tuple[tuple[tuple[int, int], ...], ...]]:
    """Device rows of every order in which operations can be put one after another; the same may come again."""
    blocks = problem.blocks
    waits = [[(problem.index[wait.block], wait.distance) for wait in block.after] for block in blocks]
    seen = set()

    def exact(value: Number) -> Fraction:
        return Fraction(str(value))

    def add(rows: tuple[tuple[tuple[int, int], ...], ...], done: tuple[int, ...],
            levels: tuple[Fraction, ...]) -> Iterator[tuple[tuple[tuple[int, int], ...], ...]]:
        if rows in seen:
            return
        seen.add(rows)
        if min(done) == micro_batches:
            yield rows
        for i, m in enumerate(done):
            if m == micro_batches or any(done[j] <= m - distance for j, distance in waits[i]):
                continue
            here, after, held = blocks[i].devices, list(levels), True
            for device in here:
                amount, room = exact(blocks[i].memory_on(device)), problem.devices[device].memory
                peak = levels[device] + max(amount, Fraction(0)) + exact(blocks[i].workspace_on(device))
                held = held and (room is None or peak <= exact(room))
                after[device] += amount
            if held:
                yield from add(tuple((*row, (i, m)) if device in here else row for device, row in enumerate(rows)),
                               (*done[:i], m + 1, *done[i + 1:]), tuple(after))

    yield from add(((),) * len(problem.devices), (0,) * len(blocks), (Fraction(0),) * len(problem.devices))


def span_of_order(problem: Problem, micro_batches: int, orders: Orders) -> float:
    """The least span as a linear programme: a start for every operation and transfer, no overlap along the rows."""
    solver = pywraplp.Solver.CreateSolver("GLOP")
    start = {op: solver.NumVar(0, solver.infinity(), "") for row in orders for op in row}
    span = solver.NumVar(0, solver.infinity(), "span")
    queues: dict[str, list[tuple[int, int, int, Any, float]]] = {}
    for place, (producer, consumer, dependency) in enumerate(problem.dependencies()):
        for m in range(micro_batches - dependency.distance):
            made = start[producer, m] + problem.blocks[producer].duration
            used = start[consumer, m + dependency.distance]
            if dependency.link is None:
                solver.Add(used >= made + dependency.lag)
                continue
            begin = solver.NumVar(0, solver.infinity(), "")
            number = list(orders[problem.links_by_name[dependency.link].source]).index((producer, m))
            queues.setdefault(dependency.link, []).append((number, place, m, begin, dependency.lag))
            solver.Add(begin >= made)
            solver.Add(used >= begin + dependency.lag)
    rows = [[(start[op], problem.blocks[op[0]].duration) for op in row] for row in orders if row]
    rows += [[(begin, lag) for *_, begin, lag in sorted(queue, key=lambda entry: entry[:3])]
             for queue in queues.values()]
    for row in rows:
        for (one, length), (other, _) in pairwise(row):
            solver.Add(other >= one + length)
        solver.Add(row[-1][0] + row[-1][1] - row[0][0] <= span)
    solver.Minimize(span)
    assert solver.Solve() == pywraplp.Solver.OPTIMAL
    return float(span.solution_value())
