"""The least span of an order by a linear programme, and of tiny problems by trying every order, of operations or, with
lanes, of their starts and ends; shares no code with the search."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from typing import Any, TypeAlias

from ortools.linear_solver import pywraplp

from weft.solver.problem import Number, Problem
from weft.solver.timing import Orders


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


#: (block, micro-batch, whether it is the end).
_Event: TypeAlias = tuple[int, int, bool]


def least_span_with_lanes(problem: Problem, micro_batches: int, most_orders: int = 2000) -> float | None:
    """The least span of ``problem``, which has no links: devices and lanes that share a limited memory which no single
    one of them has alone are busy as one. ``None`` where nothing fits; raises ``OverflowError`` for more sequences of
    starts and ends than ``most_orders``."""
    spans = []
    for number, events in enumerate(_every_sequence(problem, micro_batches)):
        if number == most_orders:
            raise OverflowError
        spans.append(_span_of_sequence(problem, micro_batches, events))
    return min((span for span in spans if span < float("inf")), default=None)


def _every_sequence(problem: Problem, micro_batches: int) -> Iterator[list[_Event]]:
    """Every order in time of all starts and ends that devices, dependencies and memory allow."""
    blocks, owner = problem.blocks, _owners(problem)

    def changed(i: int, level: list[Fraction], *, ends: bool) -> list[Fraction] | None:
        after = list(level)
        for device in blocks[i].devices:
            amount, space = (Fraction(str(value)) for value in (blocks[i].memory_on(device),
                                                                blocks[i].workspace_on(device)))
            after[owner[device]] += min(amount, Fraction(0)) - space if ends else max(amount, Fraction(0)) + space
        takes = [d for d in range(len(after)) if after[d] > level[d]]
        room = {d: problem.devices[d].memory for d in takes}
        fits = all(limit is None or after[d] <= Fraction(str(limit)) for d, limit in room.items())
        return after if fits else None

    def add(events: list[_Event], level: list[Fraction]) -> Iterator[list[_Event]]:
        if len(events) == 2 * len(blocks) * micro_batches:
            yield events
        running = [event[:2] for event in events if not event[2] and (*event[:2], True) not in events]
        for i, block in enumerate(blocks):
            m = sum(event[0] == i and not event[2] for event in events)
            for event, may in (((i, m - 1, True), (i, m - 1) in running), (
                    (i, m, False), m < micro_batches
                    and not any(set(block.devices) & set(blocks[j].devices) for j, _ in running)
                    and all((problem.index[wait.block], m - wait.distance, True) in events
                            for wait in block.after if m >= wait.distance))):
                after = changed(i, level, ends=event[2]) if may else None
                if after is not None:
                    yield from add([*events, event], after)

    yield from add([], [Fraction(0)] * len(problem.devices))


def _owners(problem: Problem) -> list[int]:
    names = [device.name for device in problem.devices]
    return [names.index(device.lane_of or device.name) for device in problem.devices]


def _span_of_sequence(problem: Problem, micro_batches: int, events: list[_Event]) -> float:
    """The least span as a linear programme: starts and ends as late as the ones before them at least. Infinite where no
    times are in this order, as what starts first and lasts longest cannot end first."""
    blocks, owner = problem.blocks, _owners(problem)
    solver = pywraplp.Solver.CreateSolver("GLOP")
    start = {(i, m): solver.NumVar(0, solver.infinity(), "") for i, m, ends in events if not ends}
    span = solver.NumVar(0, solver.infinity(), "span")
    at = [start[i, m] + blocks[i].duration * ends for i, m, ends in events]
    for one, other in pairwise(at):
        solver.Add(other >= one)
    for producer, consumer, wait in problem.dependencies():
        for m in range(micro_batches - wait.distance):
            solver.Add(start[consumer, m + wait.distance] >= start[producer, m] + blocks[producer].duration + wait.lag)
    for part in _busy_as_one(problem, owner):
        ops = [op for op in start if part & set(blocks[op[0]].devices)]
        for first in ops:
            for last in ops:
                solver.Add(start[last] + blocks[last[0]].duration - start[first] <= span)
    solver.Minimize(span)
    return float(span.solution_value()) if solver.Solve() == pywraplp.Solver.OPTIMAL else float("inf")


def _busy_as_one(problem: Problem, owner: list[int]) -> list[set[int]]:
    """Every device alone; and, where the memory of one with lanes hangs on times, all of these together."""
    parts = [{d} for d in range(len(owner))]
    for d, device in enumerate(problem.devices):
        pool = {e for e, of in enumerate(owner) if of == d}
        users = [set(block.devices) for block in problem.blocks
                 if any(e in pool and (block.memory_on(e) or block.workspace_on(e)) for e in block.devices)]
        if device.memory is not None and len(pool) > 1 and not any(all(e in on for on in users) for e in pool):
            parts.append(pool)
    return parts


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
