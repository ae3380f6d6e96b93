"""The judge's rules on order: devices and lanes, waits, links, and the turn of micro-batches."""

from __future__ import annotations

import math
from collections.abc import Iterator

from weft.solver.control.clock import checked
from weft.solver.judge.case import Case
from weft.solver.problem import Number

__all__ = ["check_dependencies", "check_devices", "check_links", "check_turns"]


def check_devices(case: Case) -> Iterator[str]:
    """A device runs one block at a time."""
    for device, row in zip(case.problem.devices, checked(case.rows), strict=True):
        running = None
        for operation in row:
            if running is not None and operation.start < running.end - case.tolerance:
                yield (f"device {device.name!r}: {case.name(operation)} starts at {case.time(operation.start)}, "
                       f"but {case.name(running)} runs there until {case.time(running.end)}")
            if running is None or operation.end > running.end:
                running = operation


def check_dependencies(case: Case) -> Iterator[str]:
    """A block starts after those it waits for without a link."""
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


def check_links(case: Case) -> Iterator[str]:
    """A link carries one transfer at a time, and a block starts after its transfers."""
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


def check_turns(case: Case) -> Iterator[str]:
    """Per block, micro-batch m starts before m + 1."""
    for present in checked(case.table, 16):
        for m, operation in present.items():
            later = present.get(m + 1)
            if later is not None and later.start <= operation.start:
                yield (f"{case.where(later)} starts at {case.time(later.start)}, not after micro-batch {m} of the "
                       f"same block, which starts at {case.time(operation.start)}")
