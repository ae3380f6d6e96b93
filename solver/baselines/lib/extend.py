"""More micro-batches for per-device orders that repeat in their middle."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.solver.baselines.lib.amounts import Amounts
from weft.solver.baselines.lib.base import Row
from weft.solver.control.clock import checked
from weft.solver.problem import Problem
from weft.solver.schedule import Operation
from weft.solver.timing import time_orders

#: The least number of micro-batches of a schedule before it is extended.
ENOUGH = 64


def enough(problem: Problem) -> int:
    """The number of micro-batches of a schedule of ``problem`` before it is extended."""
    return max(ENOUGH, 4 * len(problem.devices))


def extended(problem: Problem, micro_batches: int, make: Callable[[int], list[Row] | None]) -> list[Row] | None:
    """Per-device orders of ``micro_batches`` from those of ``make`` for fewer, or its own if they are few.

    The orders are repeated between two times at which the progress is the same except for a whole number of
    micro-batches: dependencies and, if micro-batches give back all they take, memory depend only on the progress.
    Without such times ``make`` makes all.
    """
    fewer = min(micro_batches, enough(problem))
    if not _returns_what_it_takes(problem):
        return make(micro_batches)
    rows = make(fewer)
    if rows is None or fewer == micro_batches:
        return rows
    found = _repeat(problem, fewer, rows)
    if found is not None and (micro_batches - fewer) % found[2]:
        fewer -= found[2] - (micro_batches - fewer) % found[2]
        rows = make(fewer)
        found = None if rows is None else _repeat(problem, fewer, rows)
    if rows is None or found is None or (micro_batches - fewer) % found[2]:
        return make(micro_batches)
    begins, ends, step = found
    longer: list[Row] = []
    for row, begin, end in zip(checked(rows), begins, ends, strict=True):
        more = micro_batches - fewer
        longer.append([*row[:end],
                       *((block, m + turn) for turn in range(step, more + 1, step) for block, m in row[begin:end]),
                       *((block, m + more) for block, m in row[end:])])
    return longer


def _returns_what_it_takes(problem: Problem) -> bool:
    changes = Amounts.of(problem).change
    return all(sum(change.values()) == 0 for change in changes)


def _repeat(problem: Problem, micro_batches: int, rows: Sequence[Row]) -> tuple[list[int], list[int], int] | None:
    """Per device, the begin and end of the repeated part, and the number of micro-batches it advances."""
    operations = sorted(time_orders(problem, micro_batches, rows), key=lambda o: (o.start, o.end, o.block))
    done = [0] * len(problem.blocks)
    places = [0] * len(problem.devices)
    seen: dict[tuple[int, ...], tuple[int, list[int]]] = {}
    middle: list[Operation] = operations[len(operations) // 4:]
    for operation in operations[:len(operations) // 4]:
        _step(problem, operation, done, places)
    for operation in checked(middle, 256):
        _step(problem, operation, done, places)
        if done[operation.block] != operation.micro_batch + 1 or operation.block != problem.topological_order[0]:
            continue  # looked at when a micro-batch begins
        if done[operation.block] == micro_batches:
            return None
        state = tuple(count - done[operation.block] for count in done)
        if state in seen:
            before, begins = seen[state]
            return begins, places, done[operation.block] - before
        seen[state] = done[operation.block], places.copy()
    return None


def _step(problem: Problem, operation: Operation, done: list[int], places: list[int]) -> None:
    done[operation.block] += 1
    for device in problem.blocks[operation.block].devices:
        places[device] += 1
