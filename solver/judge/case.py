"""The data that the judge's rules share: the well-formed operations, by device and by block."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Self

from weft.solver.control.clock import checked
from weft.solver.problem import Dependency, Problem
from weft.solver.schedule import Operation, Schedule

#: Times that differ by no more than this share of the makespan are equal.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class JudgedCase:
    """The data that the checks share: the well-formed operations, and how a sentence names them."""

    problem: Problem
    micro_batches: int
    operations: list[Operation]
    #: Per device, its operations by start.
    rows: list[list[Operation]]
    #: Per block, its operation for each micro-batch (the first one, if there are two).
    table: list[dict[int, Operation]]
    makespan: float
    tolerance: float

    @classmethod
    def of(cls, schedule: Schedule) -> JudgedCase:
        """The case of ``schedule``."""
        problem, n = schedule.problem, schedule.micro_batches
        sound = _all_sound(schedule.operations, problem, n)
        return cls.made(problem, n, schedule.operations if sound else sound_operations(schedule))

    @classmethod
    def made(cls, problem: Problem, n: int, operations: Iterable[Operation], *more: Any) -> Self:
        """The case of ``n`` micro-batches of ``problem``; ``operations`` are well-formed; ``more``: further fields of a
        subclass."""
        operations = sorted(operations, key=itemgetter(2, 3, 0, 1))  # start, end, block, micro-batch
        rows: list[list[Operation]] = [[] for _ in problem.devices]
        table: list[dict[int, Operation]] = [{} for _ in problem.blocks]
        for operation in checked(operations, 4096):
            table[operation.block].setdefault(operation.micro_batch, operation)
            for device in problem.blocks[operation.block].devices:
                rows[device].append(operation)
        makespan = max((o.end for o in operations), default=0.0)
        return cls(problem, n, operations, rows, table, makespan, tolerance_of(problem, n, makespan, len(operations)),
                   *more)

    def waits(self) -> Iterator[tuple[int, int, Dependency]]:
        """Every wait: its index in the file, the block that waits, and its dependency."""
        place = 0
        for consumer, block in enumerate(self.problem.blocks):
            for dependency in block.after:
                place += 1
                yield place, consumer, dependency

    def rows_of_blocks(self) -> Iterator[tuple[int, int, Mapping[int, Operation]]]:
        """Per block of the problem: its number, the number of its micro-batches, and its operations by micro-batch."""
        for block, present in enumerate(self.table):
            yield block, self.micro_batches, present

    def called(self, block: int, micro_batch: int) -> str:
        """The name in a sentence of the block's operation for ``micro_batch``."""
        return f"block {self.problem.blocks[block].name!r} of micro-batch {micro_batch}"

    def name(self, operation: Operation) -> str:
        """The name of ``operation`` in a sentence."""
        return self.called(operation.block, operation.micro_batch)

    def where(self, operation: Operation) -> str:
        """The name of ``operation`` and the devices it runs on."""
        devices = self.problem.blocks[operation.block].devices
        names = ", ".join(repr(self.problem.devices[device].name) for device in devices)
        return f"{self.name(operation)} on {'device' if len(devices) == 1 else 'devices'} {names}"

    def time(self, value: float) -> str:
        """``value`` with its unit."""
        return f"{value:.12g} {self.problem.time_unit}"


def tolerance_of(problem: Problem, micro_batches: int, makespan: float, operations: int) -> float:
    """The difference at which times still count as equal: a share of the makespan, or of all work and transfers if that
    is less."""
    work = sum(block.duration + sum(dependency.lag for dependency in block.after) for block in problem.blocks)
    return TOLERANCE * min(abs(makespan), work * min(micro_batches, operations))


def _all_sound(operations: Sequence[Operation], problem: Problem, micro_batches: int) -> bool:
    """Whether :func:`_is_sound` is true of all, which is nearly always so: many times as fast as one by one."""
    if not operations:
        return True
    blocks, batches, starts, ends = zip(*operations, strict=True)
    return ({*map(type, blocks), *map(type, batches)} == {int} and min(blocks) >= 0 and min(batches) >= 0
            and max(blocks) < len(problem.blocks) and max(batches) < micro_batches
            and all(map(math.isfinite, starts)) and all(map(math.isfinite, ends)))


def sound_operations(schedule: Schedule) -> Iterator[Operation]:
    """The well-formed operations."""
    return (operation for operation in checked(schedule.operations, 4096)
            if _is_sound(operation, schedule.problem, schedule.micro_batches))


def _is_sound(operation: Operation, problem: Problem, micro_batches: int) -> bool:
    return (isinstance(operation.block, int) and 0 <= operation.block < len(problem.blocks)
            and isinstance(operation.micro_batch, int) and 0 <= operation.micro_batch < micro_batches
            and math.isfinite(operation.start) and math.isfinite(operation.end))
