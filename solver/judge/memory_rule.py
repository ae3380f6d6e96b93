"""The judge's rule on memory: the level of every device, and whether it fits.

Amounts are added exactly, as the decimal numbers that they are written as. An operation that ends gives back before one
that starts at that time takes.

A device and its lanes are a pool: the amounts that all their blocks take and give count on the device, in the order of
time. A block that runs on several devices of a pool takes and gives back its amounts on each of them.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from operator import itemgetter

from weft.solver.control.clock import checked
from weft.solver.judge.case import JudgedCase
from weft.solver.judge.columns import Amounts
from weft.solver.problem import Number, Problem
from weft.solver.schedule import Operation


def check_memory(case: JudgedCase) -> Iterator[str]:
    """One sentence for each device whose level exceeds its memory."""
    problem = case.problem
    fits: set[object] = set()  # what devices with the same operations and the same memory have in common
    for device in checked(range(len(case.rows))):
        capacity = problem.devices[device].memory
        if capacity is None:
            continue
        row = _pool_row(case, device)
        amounts = tuple((i, problem.blocks[i].memory[place], problem.blocks[i].workspace[place])
                        for i, places in problem.pool_places[device].items() for place in places)
        same = (capacity, amounts, tuple(map(id, row)))
        if same in fits:
            continue
        unit, levels = levels_on(case, device, capacity)
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
            yield (f"device {problem.devices[device].name!r}: when {case.name(breach)}{_lane(case, breach, device)} "
                   f"starts at "
                   f"{case.time(breach.start)} it holds {amount(at_breach)}, {amount(at_breach - room)} more than its "
                   f"{amount(room)}{peak}")


def levels_on(case: JudgedCase, device: int, capacity: Number) -> tuple[int, Iterator[tuple[int, bool, int]]]:
    """``(level, is start, place in row)`` of every change on ``device``, in a unit in which ``capacity`` and all
    amounts are whole numbers; first, how many of this unit are one of the problem's. The row is its pool's, by start;
    that of a lane is empty."""
    unit, taken, given = _scaled(case.problem, device, capacity)
    row, events = _pool_row(case, device), _pool_events if case.problem.lanes_of[device] else _events

    def levels() -> Iterator[tuple[int, bool, int]]:
        level = 0
        for _, is_start, place in events(row, case.tolerance):
            level += taken[row[place].block] if is_start else -given[row[place].block]
            yield level, is_start, place
    return unit, levels()


def _scaled(problem: Problem, device: int, capacity: Number) -> tuple[int, dict[int, int], dict[int, int]]:
    """The unit of :func:`levels_on`, and the amounts that each block on ``device`` takes and gives back in it."""
    here = {i: _amounts(problem, i, places) for i, places in problem.pool_places[device].items()}
    # One common denominator makes whole numbers of all amounts: exact, and fast to add.
    unit = math.lcm(_exact(capacity).denominator, *(amount.denominator for both in here.values() for amount in both))
    return (unit, {i: int(take * unit) for i, (take, _) in here.items()},
            {i: int(give * unit) for i, (_, give) in here.items()})


def hang_on_times(problem: Problem, device: int) -> bool:
    """Whether the level of ``device``, which is not a lane, hangs on when blocks run, not only on the order on each
    device: its memory is limited, and no single one of it and its lanes runs every block that takes or gives."""
    if problem.devices[device].memory is None or not problem.lanes_of[device]:
        return False
    changing = [problem.blocks[i] for i, places in problem.pool_places[device].items()
                if any(problem.blocks[i].memory[place] or problem.blocks[i].workspace[place] for place in places)]
    return not any(all(engine in block.devices for block in changing) for engine in (device, *problem.lanes_of[device]))


def scaled_room(problem: Problem, device: int) -> Amounts:
    """The capacity of ``device``, which has one, and the amounts that its pool's blocks take and give back, in a unit
    of its own that makes all whole numbers."""
    capacity = problem.devices[device].memory
    assert capacity is not None
    unit, taken, given = _scaled(problem, device, capacity)
    return int(_exact(capacity) * unit), taken, given


def _pool_row(case: JudgedCase, device: int) -> list[Operation]:
    """The operations that count on the memory of ``device``, by start: its row, merged with those of its lanes."""
    pool = case.problem.pool_places[device]
    if not pool:
        return []
    if not case.problem.lanes_of[device]:
        return case.rows[device]
    engines = (device, *case.problem.lanes_of[device])
    together = {id(operation): operation for engine in engines for operation in case.rows[engine]}
    return sorted(together.values(), key=itemgetter(2, 3, 0, 1))


def _lane(case: JudgedCase, operation: Operation, device: int) -> str:
    """The suffix to ``operation``'s name if it runs only on lanes of ``device``."""
    devices = case.problem.blocks[operation.block].devices
    if device in devices:
        return ""
    lane = next(lane for lane in devices if lane in case.problem.lanes_of[device])
    return f" on its lane {case.problem.devices[lane].name!r}"


def _events(row: list[Operation], tolerance: float) -> list[tuple[float, bool, int]]:
    """``(time, is start, place in row)`` in the order in which memory changes: at one time, ends first."""
    events = [(operation.start, True, place) for place, operation in enumerate(row)]
    for place, operation in enumerate(row):
        end = operation.end
        following = row[place + 1].start if place + 1 < len(row) else math.inf
        if end - tolerance <= following < end:  # equal except for rounding
            end = following
        events.append((end, False, place))
    return sorted(events)


def _pool_events(row: list[Operation], tolerance: float) -> list[tuple[float, bool, int]]:
    """Like :func:`_events`, for operations that may overlap: an end that equals another start except for rounding is
    moved to that start, the first if there are several."""
    starts = [operation.start for operation in row]
    events = [(start, True, place) for place, start in enumerate(starts)]
    for place, operation in enumerate(row):
        end = operation.end
        following = max(bisect_left(starts, end - tolerance), bisect_right(starts, operation.start))
        if following < len(starts):
            end = min(end, starts[following])
        events.append((end, False, place))
    return sorted(events)


def _amounts(problem: Problem, block: int, places: Iterable[int]) -> tuple[Fraction, Fraction]:
    """The amounts that a block takes at its start and gives back at its end, on the devices at ``places`` of its
    list."""
    taken = given = Fraction(0)
    for place in places:
        change, workspace = _exact(problem.blocks[block].memory[place]), _exact(problem.blocks[block].workspace[place])
        taken += max(change, Fraction(0)) + workspace
        given += max(-change, Fraction(0)) + workspace
    return taken, given


def _exact(value: Number) -> Fraction:
    return Fraction(value) if isinstance(value, int) else Fraction(repr(float(value)))


def _formatter(unit_name: str, unit: int) -> Callable[[int], str]:
    def amount(scaled: int) -> str:
        value = Fraction(scaled, unit)
        return f"{value.numerator if value.denominator == 1 else format(float(value), '.12g')} {unit_name}"
    return amount
