"""The judge: is a :class:`~weft.solver.schedule.Schedule` a feasible schedule of its problem?

Every rule is checked from the bare list of operations. Nothing of what makes schedules is used here (not the timing,
not what a schedule derives about itself), so that a mistake there cannot hide behind the same mistake here.

The rules:

- every block of every micro-batch 0 .. N-1 stands there once, lasts as long as its block, and the first starts at 0;
- a device runs one block at a time; a block on several devices holds all of them from start to end;
- a block starts after the blocks it waits for, and after their transfers. Transfers on a link run one at a time, in the
  order in which their producers run on the link's source device (several of one producer in file order), each as soon
  as its producer has ended and the link is free;
- at no time does a device hold more than its memory. What ends gives back before what starts at that time takes.
  Amounts are added exactly, as the decimal numbers they are written as: 0.1 + 0.2 fits into 0.3;
- per block, micro-batch m starts before m + 1 (unless ``in_turn=False``);
- what the schedule says of itself (bounds, period, repetend) is true, as far as :mod:`weft.solver.validate_statements`
  can tell.

Times are compared with a tolerance of 1e-9 of the makespan (or of the work and transfers one after another, if that
is less: idle time must not buy tolerance).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import islice
from operator import itemgetter

from weft.solver.control.clock import checked
from weft.solver.problem import Number, Problem
from weft.solver.schedule import Operation, Schedule
from weft.solver.validate_columns import Amounts, Columns
from weft.solver.validate_statements import Verdict, judge_statements

__all__ = ["InvalidSchedule", "peaks", "statements", "validate", "violations"]

TOLERANCE = 1e-9
#: From so many operations on it is told at once, where it is so, that no rule is broken
#: (:mod:`weft.solver.validate_columns`).
_MANY = 4096


class InvalidSchedule(ValueError):
    """A schedule that breaks a rule; ``violations`` holds one sentence for each breach found."""

    def __init__(self, violations: Sequence[str]) -> None:
        super().__init__("\n".join(violations))
        self.violations = tuple(violations)


def validate(schedule: Schedule, *, capacities: bool = True, in_turn: bool = True) -> None:
    """Raise :class:`InvalidSchedule` unless ``schedule`` keeps every rule.

    ``capacities=False`` leaves out the devices' memory: what a schedule needs, rather than whether it fits.
    ``in_turn=False`` leaves out that a block runs micro-batch m before m + 1: bounds and steady states rest on it, but
    other tools' schedules may run backwards last in, first out.
    """
    found = violations(schedule, capacities=capacities, in_turn=in_turn)
    if found:
        raise InvalidSchedule(found)


def violations(schedule: Schedule, *, capacities: bool = True, in_turn: bool = True, limit: int = 20) -> list[str]:
    """What is wrong with ``schedule``, at most ``limit`` sentences; empty if nothing is.

    Each names the block, micro-batch, device, time and amount at fault, in the problem's units. Arguments are those of
    :func:`validate`.
    """
    return list(islice(_violations(schedule, capacities, in_turn), limit))


def statements(schedule: Schedule) -> Verdict:
    """Which of the bounds, period and repetend of ``schedule`` are verified, false or open; none of them where it has
    no micro-batches."""
    n = schedule.micro_batches
    if not isinstance(n, int) or n < 1:
        return Verdict()
    case = _Case.of(schedule)
    return judge_statements(schedule, case.rows, case.makespan, case.tolerance)


def peaks(schedule: Schedule) -> list[Fraction]:
    """Per device the most that it holds at any time, exactly, in the problem's memory unit; at least 0."""
    case = _Case.of(schedule)
    found = []
    for device in range(len(case.rows)):
        unit, levels = _levels(case, device, 0)
        found.append(Fraction(max((level for level, _, _ in levels), default=0), unit))
    return [max(peak, Fraction(0)) for peak in found]


def _violations(schedule: Schedule, capacities: bool, in_turn: bool) -> Iterator[str]:
    n = schedule.micro_batches
    if not isinstance(n, int) or n < 1:
        yield f"micro_batches is {n!r}, a schedule has at least one"
        return
    columns = Columns.of(schedule.problem, n, schedule.operations) if len(schedule.operations) >= _MANY else None
    if columns is not None:
        makespan = float(columns.end.max())
        tolerance = _tolerance(schedule.problem, n, makespan, len(schedule.operations))
        amounts = partial(_scaled_room, schedule.problem) if capacities else None
        if columns.keep_rules(tolerance, amounts, in_turn):
            yield from judge_statements(schedule, columns.rows(), makespan, tolerance).false
            return
    case = _Case.of(schedule)
    yield from _check_operations(schedule, case)
    yield from _check_completeness(case)
    for check in (_check_devices, _check_dependencies, _check_links):
        yield from check(case)
    if in_turn:
        yield from _check_fifo(case)
    if capacities:
        yield from _check_memory(case)
    yield from judge_statements(schedule, case.rows, case.makespan, case.tolerance).false


@dataclass(frozen=True)
class _Case:
    """What the checks share: the operations that make sense by themselves, and how they are spoken of."""

    problem: Problem
    micro_batches: int
    operations: list[Operation]
    #: Per device, its operations by start.
    rows: list[list[Operation]]
    #: Per block, its operation for each micro-batch (the first of them, where one is there twice).
    table: list[dict[int, Operation]]
    makespan: float
    tolerance: float

    @classmethod
    def of(cls, schedule: Schedule) -> _Case:
        problem, n = schedule.problem, schedule.micro_batches
        sound = _all_sound(schedule.operations, problem, n)
        operations = sorted(schedule.operations if sound else
                            (o for o in checked(schedule.operations, 4096) if _is_sound(o, problem, n)),
                            key=itemgetter(2, 3, 0, 1))  # start, end, block, micro-batch
        rows: list[list[Operation]] = [[] for _ in problem.devices]
        table: list[dict[int, Operation]] = [{} for _ in problem.blocks]
        for operation in checked(operations, 4096):
            table[operation.block].setdefault(operation.micro_batch, operation)
            for device in problem.blocks[operation.block].devices:
                rows[device].append(operation)
        makespan = max((o.end for o in operations), default=0.0)
        return cls(problem, n, operations, rows, table, makespan, _tolerance(problem, n, makespan, len(operations)))

    def name(self, operation: Operation) -> str:
        return f"block {self.problem.blocks[operation.block].name!r} of micro-batch {operation.micro_batch}"

    def where(self, operation: Operation) -> str:
        devices = self.problem.blocks[operation.block].devices
        names = ", ".join(repr(self.problem.devices[device].name) for device in devices)
        return f"{self.name(operation)} on {'device' if len(devices) == 1 else 'devices'} {names}"

    def time(self, value: float) -> str:
        return f"{value:.12g} {self.problem.time_unit}"


def _tolerance(problem: Problem, micro_batches: int, makespan: float, operations: int) -> float:
    work = sum(block.duration + sum(dependency.lag for dependency in block.after) for block in problem.blocks)
    return TOLERANCE * min(abs(makespan), work * min(micro_batches, operations))


def _all_sound(operations: Sequence[Operation], problem: Problem, micro_batches: int) -> bool:
    """Whether :func:`_is_sound` is true of all, as it nearly always is, told many times as fast."""
    if not operations:
        return True
    blocks, batches, starts, ends = zip(*operations, strict=True)
    return ({*map(type, blocks), *map(type, batches)} == {int} and min(blocks) >= 0 and min(batches) >= 0
            and max(blocks) < len(problem.blocks) and max(batches) < micro_batches
            and all(map(math.isfinite, starts)) and all(map(math.isfinite, ends)))


def _is_sound(operation: Operation, problem: Problem, micro_batches: int) -> bool:
    return (isinstance(operation.block, int) and 0 <= operation.block < len(problem.blocks)
            and isinstance(operation.micro_batch, int) and 0 <= operation.micro_batch < micro_batches
            and math.isfinite(operation.start) and math.isfinite(operation.end))


# -- the operations themselves -----------------------------------------------------------------------------------


def _check_operations(schedule: Schedule, case: _Case) -> Iterator[str]:
    blocks, n = case.problem.blocks, case.micro_batches
    for operation in checked(schedule.operations, 4096):
        block, m, start, end = operation
        if not isinstance(block, int) or not 0 <= block < len(blocks):
            yield (f"an operation of micro-batch {m} names block number {block!r}, "
                   f"there are {len(blocks)} (0 to {len(blocks) - 1})")
        elif not isinstance(m, int) or not 0 <= m < n:
            yield f"block {blocks[block].name!r} runs for micro-batch {m!r}, the schedule has 0 to {n - 1}"
        elif not (math.isfinite(start) and math.isfinite(end)):
            yield f"{case.where(operation)} runs from {start} to {end}, times are finite"
        elif start < -case.tolerance:
            yield f"{case.where(operation)} starts at {case.time(start)}, before 0"
        elif abs(end - start - blocks[block].duration) > case.tolerance:
            yield (f"{case.where(operation)} runs from {case.time(start)} to {case.time(end)}, that is "
                   f"{case.time(end - start)}, but the block lasts {case.time(blocks[block].duration)}")
    if case.operations and case.operations[0].start > case.tolerance:
        first = case.operations[0]
        yield f"nothing starts at 0: the first is {case.where(first)} at {case.time(first.start)}"


def _check_completeness(case: _Case) -> Iterator[str]:
    for index, block in enumerate(case.problem.blocks):
        present = case.table[index]
        missing = case.micro_batches - len(present)
        if missing:
            first = next(m for m in range(case.micro_batches) if m not in present)
            device = case.problem.devices[block.devices[0]].name
            more = f", nor do {missing - 1} other micro-batches of it" if missing > 1 else ""
            yield f"block {block.name!r} of micro-batch {first} on device {device!r} never runs{more}"
    if len(case.operations) > sum(map(len, case.table)):
        seen: set[tuple[int, int]] = set()
        for operation in case.operations:
            if (operation.block, operation.micro_batch) in seen:
                yield f"{case.where(operation)} runs twice, again at {case.time(operation.start)}"
            seen.add((operation.block, operation.micro_batch))


# -- order: devices, dependencies, links, FIFO --------------------------------------------------------------------


def _check_devices(case: _Case) -> Iterator[str]:
    for device, row in zip(case.problem.devices, checked(case.rows), strict=True):
        running = None
        for operation in row:
            if running is not None and operation.start < running.end - case.tolerance:
                yield (f"device {device.name!r}: {case.name(operation)} starts at {case.time(operation.start)}, "
                       f"but {case.name(running)} runs there until {case.time(running.end)}")
            if running is None or operation.end > running.end:
                running = operation


def _check_dependencies(case: _Case) -> Iterator[str]:
    """Those without a link."""
    problem = case.problem
    for consumer, block in enumerate(checked(problem.blocks, 16)):
        for dependency in block.after:
            if dependency.link is not None:
                continue
            producers = case.table[problem.index[dependency.block]]
            for m, operation in case.table[consumer].items():
                producer = producers.get(m - dependency.distance)
                if producer is None or operation.start >= producer.end + dependency.lag - case.tolerance:
                    continue
                transfer = f" and its transfer takes {case.time(dependency.lag)}" if dependency.lag else ""
                yield (f"{case.where(operation)} starts at {case.time(operation.start)}, but it waits for "
                       f"{case.name(producer)}, which ends at {case.time(producer.end)}{transfer}")


def _check_links(case: _Case) -> Iterator[str]:
    problem = case.problem
    # (start, end, block, micro-batch) of the producer, place in the file, consumer, consumer's micro-batch, length
    transfers: dict[str, list[tuple[float, float, int, int, int, int, int, Number]]] = {}
    place = 0
    for consumer, block in enumerate(problem.blocks):
        for dependency in block.after:
            place += 1
            if dependency.link is None:
                continue
            listed = transfers.setdefault(dependency.link, [])
            for m, producer in case.table[problem.index[dependency.block]].items():
                if m + dependency.distance < case.micro_batches:
                    listed.append((producer.start, producer.end, producer.block, m,
                                   place, consumer, m + dependency.distance, dependency.lag))
    for link, listed in transfers.items():
        free = -math.inf
        for _, end, producer_block, m, _, consumer, k, lag in sorted(listed):
            begin = max(end, free)
            free = begin + lag
            operation = case.table[consumer].get(k)
            if operation is not None and operation.start < free - case.tolerance:
                yield (f"{case.where(operation)} starts at {case.time(operation.start)}, but its transfer from block "
                       f"{problem.blocks[producer_block].name!r} of micro-batch {m} is on link {link!r} from "
                       f"{case.time(begin)} to {case.time(free)}")


def _check_fifo(case: _Case) -> Iterator[str]:
    for present in checked(case.table, 16):
        for m, operation in present.items():
            later = present.get(m + 1)
            if later is not None and later.start <= operation.start:
                yield (f"{case.where(later)} starts at {case.time(later.start)}, not after micro-batch {m} of the "
                       f"same block, which starts at {case.time(operation.start)}")


# -- memory ------------------------------------------------------------------------------------------------------


def _check_memory(case: _Case) -> Iterator[str]:
    problem = case.problem
    fits: set[object] = set()  # what devices that run the same in the same memory have in common
    for device, row in enumerate(checked(case.rows)):
        capacity = problem.devices[device].memory
        if capacity is None:
            continue
        amounts = tuple((i, problem.blocks[i].memory[place], problem.blocks[i].workspace[place])
                        for i, place in problem.places_on[device].items())
        same = (capacity, amounts, tuple(map(id, row)))
        if same in fits:
            continue
        unit, levels = _levels(case, device, capacity)
        room = int(_exact(capacity) * unit)
        highest = 0
        breach: Operation | None = None
        at_breach = 0
        for level, is_start, place in levels:
            highest = max(highest, level)
            if breach is None and is_start and level > room:
                breach, at_breach = row[place], level
        if breach is None:
            fits.add(same)
        else:
            amount = _formatter(problem.memory_unit, unit)
            peak = f" (its peak is {amount(highest)})" if highest > at_breach else ""
            yield (f"device {problem.devices[device].name!r}: when {case.name(breach)} starts at "
                   f"{case.time(breach.start)} it holds {amount(at_breach)}, {amount(at_breach - room)} more than its "
                   f"{amount(room)}{peak}")


def _levels(case: _Case, device: int, capacity: Number) -> tuple[int, Iterator[tuple[int, bool, int]]]:
    """``(level, is start, place in row)`` of every change on ``device``, in units of which so many are one of the
    problem's, ``capacity`` a whole number of them."""
    unit, taken, given = _scaled(case.problem, device, capacity)
    row = case.rows[device]

    def levels() -> Iterator[tuple[int, bool, int]]:
        level = 0
        for _, is_start, place in _events(row, case.tolerance):
            level += taken[row[place].block] if is_start else -given[row[place].block]
            yield level, is_start, place
    return unit, levels()


def _scaled(problem: Problem, device: int, capacity: Number) -> tuple[int, dict[int, int], dict[int, int]]:
    """The unit of :func:`_levels`, and what each block on ``device`` takes and gives back in it."""
    here = {i: _amounts(problem, i, place) for i, place in problem.places_on[device].items()}
    # One common denominator makes whole numbers of all amounts: exact, and fast to add.
    unit = math.lcm(_exact(capacity).denominator, *(amount.denominator for both in here.values() for amount in both))
    return (unit, {i: int(take * unit) for i, (take, _) in here.items()},
            {i: int(give * unit) for i, (_, give) in here.items()})


def _scaled_room(problem: Problem, device: int) -> Amounts:
    """The capacity of ``device``, which has one, and what its blocks take and give back, in its own whole numbers."""
    capacity = problem.devices[device].memory
    assert capacity is not None
    unit, taken, given = _scaled(problem, device, capacity)
    return int(_exact(capacity) * unit), taken, given


def _events(row: list[Operation], tolerance: float) -> list[tuple[float, bool, int]]:
    """``(time, is start, place in row)`` in the order in which memory changes hands: at one time, ends first."""
    events = [(operation.start, True, place) for place, operation in enumerate(row)]
    for place, operation in enumerate(row):
        end = operation.end
        following = row[place + 1].start if place + 1 < len(row) else math.inf
        if end - tolerance <= following < end:  # equal but for rounding
            end = following
        events.append((end, False, place))
    return sorted(events)


def _amounts(problem: Problem, block: int, place: int) -> tuple[Fraction, Fraction]:
    """What a block takes at its start and gives back at its end, on the device that stands at ``place`` of its list."""
    change, workspace = _exact(problem.blocks[block].memory[place]), _exact(problem.blocks[block].workspace[place])
    return max(change, Fraction(0)) + workspace, max(-change, Fraction(0)) + workspace


def _exact(value: Number) -> Fraction:
    return Fraction(value) if isinstance(value, int) else Fraction(repr(float(value)))


def _formatter(unit_name: str, unit: int) -> Callable[[int], str]:
    def amount(scaled: int) -> str:
        value = Fraction(scaled, unit)
        return f"{value.numerator if value.denominator == 1 else format(float(value), '.12g')} {unit_name}"
    return amount
