"""The judge's rules on order: devices and lanes, waits, links, the turn of micro-batches, and completeness."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping

from weft.solver.control.clock import checked
from weft.solver.judge.case import JudgedCase
from weft.solver.judge.memory_rule import check_memory
from weft.solver.problem import Number


def check_times(case: JudgedCase) -> Iterator[str]:
    """Every operation lasts as long as its block, none starts before 0, and the first one starts at 0."""
    for operation in checked(case.operations, 4096):
        lasts = case.problem.blocks[operation.block].duration
        if operation.start < -case.tolerance:
            yield f"{case.where(operation)} starts at {case.time(operation.start)}, before 0"
        elif abs(operation.end - operation.start - lasts) > case.tolerance:
            yield (f"{case.where(operation)} runs from {case.time(operation.start)} to {case.time(operation.end)}, "
                   f"that is {case.time(operation.end - operation.start)}, but the block lasts {case.time(lasts)}")
    if case.operations and case.operations[0].start > case.tolerance:
        first = case.operations[0]
        yield f"nothing starts at 0: the first is {case.where(first)} at {case.time(first.start)}"


def check_devices(case: JudgedCase) -> Iterator[str]:
    """A device runs one block at a time."""
    for device, row in zip(case.problem.devices, checked(case.rows), strict=True):
        running = None
        for operation in row:
            if running is not None and operation.start < running.end - case.tolerance:
                yield (f"device {device.name!r}: {case.name(operation)} starts at {case.time(operation.start)}, "
                       f"but {case.name(running)} runs there until {case.time(running.end)}")
            if running is None or operation.end > running.end:
                running = operation


def check_dependencies(case: JudgedCase) -> Iterator[str]:
    """A block starts after the blocks it waits for without a link."""
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


def check_links(case: JudgedCase) -> Iterator[str]:
    """A link carries one transfer at a time, in the order in which the producers run (several of one producer in file
    order), and a block starts after its transfers."""
    # (start, end, block, micro-batch) of the producer, place in the file, consumer, consumer's micro-batch, length
    transfers: dict[str, list[tuple[float, float, int, int, int, int, int, Number]]] = {}
    for place, consumer, dependency in case.waits():
        if dependency.link is None:
            continue
        listed = transfers.setdefault(dependency.link, [])
        for m, producer in case.table[case.problem.index[dependency.block]].items():
            if m + dependency.distance < case.micro_batches:
                listed.append((producer.start, producer.end, producer.block, m,
                               place, consumer, m + dependency.distance, dependency.lag))
    for link, listed in transfers.items():
        free = -math.inf
        for _, end, block, m, _, consumer, k, lag in sorted(listed):
            begin = max(end, free)
            free = begin + lag
            operation = case.table[consumer].get(k)
            if operation is not None and operation.start < free - case.tolerance:
                yield (f"{case.where(operation)} starts at {case.time(operation.start)}, but its transfer from "
                       f"{case.name(case.table[block][m])} is on link {link!r} from {case.time(begin)} to "
                       f"{case.time(free)}")


def check_turns(case: JudgedCase) -> Iterator[str]:
    """Per block, micro-batch m starts before m + 1."""
    for _, _, present in checked(case.rows_of_blocks(), 16):
        for m, operation in present.items():
            later = present.get(m + 1)
            if later is not None and later.start <= operation.start:
                yield (f"{case.where(later)} starts at {case.time(later.start)}, not after micro-batch {m} of the "
                       f"same block, which starts at {case.time(operation.start)}")


def check_completeness(case: JudgedCase) -> Iterator[str]:
    """Every micro-batch of a block runs once."""
    for block, count, present in case.rows_of_blocks():
        missing = count - len(present)
        if missing:
            first = next(m for m in range(count) if m not in present)
            device = case.problem.devices[case.problem.blocks[block].devices[0]].name
            more = f", nor do {missing - 1} other micro-batches of it" if missing > 1 else ""
            yield f"{case.called(block, first)} on device {device!r} never runs{more}"
    if len(case.operations) > sum(map(len, case.table)):
        seen: set[tuple[int, int]] = set()
        for operation in case.operations:
            if (operation.block, operation.micro_batch) in seen:
                yield f"{case.where(operation)} runs twice, again at {case.time(operation.start)}"
            seen.add((operation.block, operation.micro_batch))


#: All rules except those on the schedule's statements about itself.
RULES: Mapping[str, Callable[[JudgedCase], Iterator[str]]] = {
    "times": check_times, "completeness": check_completeness, "devices": check_devices,
    "dependencies": check_dependencies, "links": check_links, "turns": check_turns, "memory": check_memory}


def check_all(case: JudgedCase, *, capacities: bool, in_turn: bool, rules: Collection[str] = RULES.keys()
              ) -> Iterator[str]:
    """The faults by ``rules``."""
    for rule in RULES:
        if rule in rules and (in_turn or rule != "turns") and (capacities or rule != "memory"):
            yield from RULES[rule](case)
