"""Whether a schedule keeps the rules, checked for all operations at once: a part of the judge
(:mod:`weft.solver.judge`).

The judge checks one operation after another, and states its faults. There are nearly always none, and for millions of
operations columns of numbers show that many times as fast. The comparisons are the same, in the same floating-point
operations; anything unusual (times that are not floats, links, a missing or repeated operation, amounts beyond 64 bits)
is left to the judge's loops, and so is every rule that is broken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from weft.solver.control.clock import checked
from weft.solver.problem import Problem
from weft.solver.schedule import Operation

_Floats: TypeAlias = npt.NDArray[np.float64]
_Whole: TypeAlias = npt.NDArray[np.int64]
#: Of a device: its capacity, and the amounts that each of its blocks takes and gives back, in whole numbers.
Amounts: TypeAlias = tuple[int, Mapping[int, int], Mapping[int, int]]

#: Sums of whole numbers stay below this, so that they fit 64 bits.
_MOST = 2**62


@dataclass(frozen=True)
class Columns:
    """A schedule with every block of every micro-batch once: times as floats, a row a block, a column a micro-batch."""

    problem: Problem
    operations: Sequence[Operation]
    start: _Floats
    end: _Floats
    #: Per device, its operations by start, end, block and micro-batch: the index of each in the flattened ``start``.
    on_device: list[_Whole]
    #: The same for every device's pool (the device and its lanes); none for a lane.
    on_pool: list[_Whole]
    #: Per operation of the flattened ``start``, its index in ``operations``.
    place: _Whole

    @classmethod
    def of(cls, problem: Problem, micro_batches: int, operations: Sequence[Operation]) -> Columns | None:
        """The columns of ``operations``, or None if anything about them is unusual."""
        total = len(problem.blocks) * micro_batches
        if len(operations) != total or any(dependency.link is not None or dependency.distance < 0
                                           for block in problem.blocks for dependency in block.after):
            return None
        columns: Sequence[Any] | None = getattr(operations, "columns", None)  # these are arrays
        if columns is None:
            columns = list(zip(*operations, strict=True))
            if [{*map(type, column)} for column in columns] != [{int}, {int}, {float}, {float}]:
                return None
        blocks, batches, starts, ends = map(np.asarray, columns)
        if (min(blocks.min(), batches.min()) < 0 or blocks.max() >= len(problem.blocks)
                or batches.max() >= micro_batches):
            return None
        number = blocks.astype(np.int64) * micro_batches + batches
        place = np.full(total, -1, dtype=np.int64)
        place[number] = np.arange(total)
        start, end = starts[place], ends[place]
        if place.min() < 0 or not (np.isfinite(start).all() and np.isfinite(end).all()):
            return None
        rows: dict[tuple[int, ...], _Whole] = {}  # devices with the same blocks run the same
        of_micro_batch = np.arange(micro_batches)
        pools = [tuple(pool) for pool in problem.pool_places]
        for here in checked([*problem.blocks_on, *pools], 16):
            if here not in rows:
                numbers = (np.array(sorted(here), dtype=np.int64)[:, None] * micro_batches + of_micro_batch).ravel()
                rows[here] = numbers[np.lexsort((end[numbers], start[numbers]))]  # stable: then block, micro-batch
        return cls(problem, operations, start.reshape(-1, micro_batches), end.reshape(-1, micro_batches),
                   [rows[here] for here in problem.blocks_on], [rows[here] for here in pools], place)

    def rows(self) -> list[list[Operation]]:
        """Per device, its operations by start; devices with the same operations share one list."""
        made: dict[int, list[Operation]] = {}
        for numbers in self.on_device:
            if id(numbers) not in made:
                made[id(numbers)] = list(map(self.operations.__getitem__, self.place[numbers].tolist()))
        return [made[id(numbers)] for numbers in self.on_device]

    def broken(self, tolerance: float, amounts: Callable[[int], Amounts] | None, in_turn: bool) -> frozenset[str]:
        """The rules of :data:`weft.solver.judge.order_rules.RULES` that may be broken, all others are kept for certain;
        ``amounts`` of each device that has a capacity, None to ignore memory."""
        with np.errstate(all="ignore"):  # beyond what floats hold they compare as Python's do
            kept = {"times": self._times_hold(tolerance), "dependencies": self._waits_are_kept(tolerance),
                    "devices": self._devices_run_one_at_a_time(tolerance),
                    "turns": not (in_turn and (self.start[:, 1:] <= self.start[:, :-1]).any()),
                    "memory": amounts is None or self._memory_holds(tolerance, amounts)}
        return frozenset(rule for rule, holds in kept.items() if not holds)

    def _times_hold(self, tolerance: float) -> bool:
        duration = np.array([float(block.duration) for block in self.problem.blocks])[:, None]
        return not (self.start.min() > tolerance or (self.start < -tolerance).any()
                    or (np.abs(self.end - self.start - duration) > tolerance).any())

    def _waits_are_kept(self, tolerance: float) -> bool:
        for consumer, block in enumerate(checked(self.problem.blocks, 16)):
            for dependency in block.after:
                ends = self.end[self.problem.index[dependency.block]]
                earliest = ends[:ends.size - min(dependency.distance, ends.size)] + dependency.lag - tolerance
                if (self.start[consumer, dependency.distance:] < earliest).any():
                    return False
        return True

    def _devices_run_one_at_a_time(self, tolerance: float) -> bool:
        start, end = self.start.ravel(), self.end.ravel()
        for numbers in checked({id(numbers): numbers for numbers in self.on_device}.values(), 16):
            if (start[numbers[1:]] < np.maximum.accumulate(end[numbers])[:-1] - tolerance).any():
                return False
        return True

    def _memory_holds(self, tolerance: float, amounts: Callable[[int], Amounts]) -> bool:
        fits: set[object] = set()  # what devices with the same operations and the same memory have in common
        for device, numbers in enumerate(checked(self.on_pool)):
            if self.problem.devices[device].memory is None:
                continue
            room, taken, given = amounts(device)
            same = (id(numbers), bool(self.problem.lanes_of[device]), room, tuple(taken.items()), tuple(given.items()))
            if same not in fits:
                if not self._fits(numbers, tolerance, room, taken, given, bool(self.problem.lanes_of[device])):
                    return False
                fits.add(same)
        return True

    def _fits(self, numbers: _Whole, tolerance: float, room: int, taken: Mapping[int, int],
              given: Mapping[int, int], mixed: bool) -> bool:
        most = max((*taken.values(), *given.values()), default=0)  # none is negative
        if room >= _MOST or most * 2 * numbers.size >= _MOST:
            return False
        start, end = self.start.ravel()[numbers], self.end.ravel()[numbers]
        starts = np.append(start, math.inf)
        following = starts[1:]
        if mixed:  # operations overlap: any other's start may be the one that an end equals
            later = np.searchsorted(start, start, "right")
            following = starts[np.maximum(np.searchsorted(start, end - tolerance), later)]
        end = np.where((end - tolerance <= following) & (following < end), following, end)  # equal except for rounding
        takes, gives = np.zeros(len(self.problem.blocks), dtype=np.int64), np.zeros(len(self.problem.blocks), np.int64)
        takes[list(taken)], gives[list(given)] = list(taken.values()), list(given.values())
        block = numbers // self.start.shape[1]
        order = np.argsort(np.concatenate((end, start)), kind="stable")  # at one time, ends first
        level = np.cumsum(np.concatenate((-gives[block], takes[block]))[order])
        return not (level[order >= numbers.size] > room).any()
