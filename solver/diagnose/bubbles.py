"""Where and why devices are idle.

Before its first operation a device waits for the pipeline to fill (*warm-up*), after its last for it to drain
(*cool-down*). A gap between two operations is cut where the set of operations that could run in it changes, and each
piece is one of

* *memory*: an operation later in the device's order was ready, but would not fit the memory here;
* *order*: one was ready and would fit, but this order runs it later;
* *device*: the next operation runs on several devices and waits for another of them;
* *transfer*: an input of the next operation has been computed and is on its way;
* *dependency*: an input of the next operation is still being computed, or its producer has not begun.

The pieces of a device add up to its idle time. A lane is an engine beside its device, whose idle time costs nothing: it
is not counted here, as in :class:`~weft.solver.schedule.Bubble`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, TypeAlias, get_args

from weft.solver.diagnose.critical_path import Levels, Waits
from weft.solver.schedule import Operation, Schedule

Cause: TypeAlias = Literal["warm_up", "dependency", "transfer", "device", "memory", "order", "cool_down"]

#: All causes, in the order in which they are reported.
CAUSES: tuple[Cause, ...] = get_args(Cause)


@dataclass(frozen=True, slots=True)
class Gap:
    """A device idle from ``start`` to ``end`` (problem's time unit) because of ``cause``.

    ``next`` is the operation that ends the gap (None after the last one); ``ready`` one that could have run but for
    memory or the order.
    """

    start: float
    end: float
    cause: Cause
    next: Operation | None
    ready: Operation | None = None

    @property
    def length(self) -> float:
        """Its length."""
        return self.end - self.start


@dataclass(frozen=True)
class DeviceIdle:
    """One device's idle time within the makespan: ``gaps`` in time order, and ``busy`` time."""

    device: int
    busy: float
    gaps: tuple[Gap, ...]

    @cached_property
    def by_cause(self) -> dict[Cause, float]:
        """Idle time of each cause, in the problem's time unit."""
        return {cause: sum(gap.length for gap in self.gaps if gap.cause == cause) for cause in CAUSES}

    @property
    def total(self) -> float:
        """The sum of its idle time."""
        return sum(gap.length for gap in self.gaps)


def idle_times(schedule: Schedule) -> tuple[DeviceIdle, ...]:
    """The idle time of every device of a valid ``schedule`` that is not a lane; see the module docstring."""
    finder = _Finder(schedule)
    return tuple(finder.of(device) for device, entry in enumerate(schedule.problem.devices) if entry.lane_of is None)


class _Finder:
    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.waits = Waits(schedule)
        self.levels = Levels(schedule)
        self.rows = schedule.device_orders
        self._starts = [[operation.start for operation in row] for row in self.rows]

    def of(self, device: int) -> DeviceIdle:
        row, makespan = self.rows[device], self.schedule.makespan
        gaps: list[Gap] = []
        busy = sum(operation.end - operation.start for operation in row)
        if not row:
            return DeviceIdle(device, busy, (Gap(0.0, makespan, "cool_down", None),) if makespan else ())
        if row[0].start > 0:
            gaps.append(Gap(0.0, row[0].start, "warm_up", row[0]))
        places: dict[int, list[int]] = {}  # of each block's operations that have not run yet, the next one last
        for place in reversed(range(len(row))):
            places.setdefault(row[place].block, []).append(place)
        for place, operation in enumerate(row):
            if place and operation.start > row[place - 1].end:
                candidates = [row[left[-1]] for left in places.values() if left and left[-1] != place]
                gaps += self._between(device, place, row[place - 1].end, candidates)
            places[operation.block].pop()
        if row[-1].end < makespan:
            gaps.append(Gap(row[-1].end, makespan, "cool_down", None))
        return DeviceIdle(device, busy, tuple(gaps))

    def _between(self, device: int, place: int, start: float, candidates: list[Operation]) -> Iterator[Gap]:
        """The gap before the device's operation number ``place``, cut where the set of runnable operations changes."""
        following = self.rows[device][place]
        end = following.start
        ready = {operation: self.waits.ready(operation) for operation in (*candidates, following)}
        cuts = {start, end, *ready.values(), *(transfer.producer.end for transfer in self.waits.transfers(following))}
        for operation in ready:
            for other in self._others(operation, device):
                cuts |= self._changes(other, start, end)
        times = sorted(time for time in cuts if start <= time <= end)
        pieces: list[Gap] = []
        for low, high in pairwise(times):
            here = [o for o, time in ready.items() if time <= low and self._idle(o, device, low)]
            cause, runnable = self._cause(device, place, low, following, ready[following], here)
            last = pieces[-1] if pieces else None
            if last is not None and (last.cause, last.ready) == (cause, runnable):
                pieces[-1] = Gap(last.start, high, cause, following, runnable)
            else:
                pieces.append(Gap(low, high, cause, following, runnable))
        yield from pieces

    def _cause(self, device: int, place: int, time: float, following: Operation, arrival: float,
               here: list[Operation]) -> tuple[Cause, Operation | None]:
        fitting = next((o for o in here if not self._breaks(o, device, place, time)), None)
        if fitting is not None:
            return "order", fitting
        if here:
            return "memory", here[0]
        if arrival <= time:
            return "device", None
        last = max(self.waits.transfers(following), key=lambda transfer: transfer.end)
        return ("transfer" if last.producer.end <= time else "dependency"), None

    def _others(self, operation: Operation, device: int) -> list[int]:
        return [other for other in self.schedule.problem.blocks[operation.block].devices if other != device]

    def _idle(self, operation: Operation, device: int, time: float) -> bool:
        """Whether the other devices of ``operation`` are idle just after ``time``."""
        for other in self._others(operation, device):
            number = bisect_right(self._starts[other], time) - 1
            if number >= 0 and self.rows[other][number].end > time:
                return False
        return True

    def _changes(self, device: int, start: float, end: float) -> set[float]:
        """The times between ``start`` and ``end`` at which the device starts or stops being busy."""
        first = max(0, bisect_right(self._starts[device], start) - 1)
        last = bisect_right(self._starts[device], end)
        return {time for operation in self.rows[device][first:last] for time in (operation.start, operation.end)}

    def _breaks(self, operation: Operation, device: int, place: int, time: float) -> bool:
        """Whether ``operation``, run at ``time``, would break the memory of one of its devices, or one that lanes
        share."""
        return self.levels.starting_breaks(operation, time) or any(self.levels.moving_breaks(d, operation,
                                             place if d == device else bisect_right(self._starts[d], time))
                   for d in self.schedule.problem.blocks[operation.block].devices)
