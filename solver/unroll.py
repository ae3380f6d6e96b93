"""More (or fewer) micro-batches for a solved schedule: whole periods put in or taken out, no search; and a periodic
schedule run for some micro-batches."""

from __future__ import annotations

from dataclasses import replace

from solver.bounds import makespan_bound
from solver.cyclic import Periodic, in_order
from solver.instance import Instance
from solver.schedule import Operation, Repetend, Schedule
from solver.timing import time_orders
from solver.validate import validate

__all__ = ["at_its_times", "first_repeat", "unroll"]

#: What a schedule's ``solver`` says of so many micro-batches only, or of blocks that wait for their time.
_OF_ONE_NUMBER = frozenset({"alternatives", "bound_over_any_placement", "bound_over_placements", "covered", "history",
                            "latency", "latency_bound", "latency_period", "placements"})


def unroll(schedule: Schedule, micro_batches: int) -> Schedule:
    """``schedule`` for another number of micro-batches, re-timed, with its bound, and checked by the judge.

    Blocks start as early as their order allows; what ``weft latency`` stated of a schedule whose blocks wait for their
    time (:func:`at_its_times`) is taken out, as it no longer holds.

    Raises ``ValueError`` if the schedule has no repetend, or fewer micro-batches are asked for than leave one period.
    """
    repetend = schedule.repetend
    if micro_batches == schedule.micro_batches:
        return schedule
    if repetend is None:
        raise ValueError("the schedule has no repetend to repeat; solve it again for this number of micro-batches")
    periods, rest = divmod(micro_batches - schedule.micro_batches, repetend.micro_batches)
    if rest:
        raise ValueError(f"the schedule's period advances {repetend.micro_batches} micro-batches: their number can "
                         f"change by multiples of that only, not from {schedule.micro_batches} to {micro_batches}")
    if repetend.count + periods < 1:
        least = schedule.micro_batches - (repetend.count - 1) * repetend.micro_batches
        raise ValueError(f"the schedule's warm-up and cool-down take {least} micro-batches, it cannot run "
                         f"{micro_batches}")
    problem = schedule.problem
    orders = []
    for device, operations in enumerate(schedule.device_orders):
        row = [(operation.block, operation.micro_batch) for operation in operations]
        orders.append(_stretched(row, len(problem.blocks_on[device]) * repetend.micro_batches, repetend.count, periods,
                                 repetend.micro_batches))
    instance = Instance.of(problem)
    result = replace(
        schedule,
        micro_batches=micro_batches,
        period=_period(schedule, instance),
        operations=time_orders(problem, micro_batches, orders),
        makespan_bound=instance.bound(makespan_bound(instance, micro_batches)),
        repetend=replace(repetend, count=repetend.count + periods),
        solver={key: value for key, value in schedule.solver.items() if key not in _OF_ONE_NUMBER},
    )
    validate(result)
    return result


def _period(schedule: Schedule, instance: Instance) -> float | None:
    """Time per micro-batch of the steady state of ``schedule`` once no block waits for its time any longer."""
    repetend = schedule.repetend
    if schedule.period is None or repetend is None or repetend.micro_batches > 1:  # none waits in those of several
        return schedule.period
    rings = []
    for device, operations in enumerate(schedule.device_orders):
        row = [(operation.block, operation.micro_batch) for operation in operations]
        length = len(schedule.problem.blocks_on[device])
        first = first_repeat(row, length, repetend.count, 1) if length else 0
        rings.append(row[first:first + length])
    found = in_order(instance, rings)
    return schedule.period if found is None else min(schedule.period, instance.time(found.period))


def at_its_times(found: Periodic, micro_batches: int) -> Schedule:
    """``found`` for micro-batches 0 .. N-1, each block when its period has it, from 0 on.

    No block runs earlier than that, as it would in a schedule that is timed by its order: every micro-batch has the
    latency of ``found``. ``found`` has one micro-batch per period.
    """
    instance, problem = found.instance, found.instance.problem
    first = min(found.starts)

    def operation(block: int, micro_batch: int) -> Operation:
        start = instance.time(found.starts[block] - first + micro_batch * found.period)
        return Operation(block, micro_batch, start, start + problem.blocks[block].duration)

    whole = micro_batches - found.depth
    return Schedule(
        problem, micro_batches,
        tuple(operation(block, m) for block in instance.blocks for m in range(micro_batches)),
        makespan_bound=instance.bound(makespan_bound(instance, micro_batches)),
        period=instance.time(found.period) if whole > 0 else None,
        repetend=Repetend(found.depth, whole) if whole > 0 else None,
        solver={"name": "weft"})


def _stretched(row: list[tuple[int, int]], length: int, count: int, periods: int, step: int) -> list[tuple[int, int]]:
    """``row`` with ``periods`` more repeats (fewer, if negative) of its ``count`` repeats of ``length`` operations."""
    first = first_repeat(row, length, count, step)
    end = first + length * count
    extra = periods * step
    if periods <= 0:
        return [*row[:end + periods * length], *((block, m + extra) for block, m in row[end:])]
    last = row[end - length:end]
    return [*row[:end], *((block, m + turn * step) for turn in range(1, periods + 1) for block, m in last),
            *((block, m + extra) for block, m in row[end:])]


def first_repeat(row: list[tuple[int, int]], length: int, count: int, step: int) -> int:
    """Where the stretch of ``count`` repeats starts: each operation ``length`` later is the same block, ``step`` on."""
    run = 0
    for position in range(len(row) - length, -1, -1):
        here = row[position]
        same = position + length < len(row) and row[position + length] == (here[0], here[1] + step)
        run = run + 1 if same else 0
        if run >= (count - 1) * length:
            return position
    raise AssertionError("the judged repetend is not in the row")
