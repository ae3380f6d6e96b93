"""The span of a schedule: how soon its devices can begin the next step. A part of the judge.

A device may begin the next step as soon as it has ended this one, regardless of the others; and if every device begins
its next step a time T after this one, every wait for another device's work in the same step is satisfied as before. So
steps can follow each other every T exactly if no device, and no link, is busy with one step for longer than that: from
the start of its first operation (transfer) to the end of its last. The largest of these times is the span. If the level
of a device and its lanes hangs on when their blocks run (:func:`~weft.solver.judge.memory_rule.hang_on_times`), the
next step's blocks on one of them could take memory that this step's blocks on another have yet to give back: these
count as one device, busy from the first start on any to the last end. The time of a transfer is not in the file: of all
times that serve its consumers, those that keep the link busy for the shortest time count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from weft.solver.judge.memory_rule import hang_on_times
from weft.solver.schedule import Schedule


def span_of(schedule: Schedule) -> tuple[float, str]:
    """The span in the problem's time unit, and the name of a device or link that is busy for so long."""
    problem = schedule.problem
    unit = [owner if hang_on_times(problem, owner) else device for device, owner in enumerate(problem.pool_of)]
    first, last = [math.inf] * len(problem.devices), [-math.inf] * len(problem.devices)
    for block, _, start, end in schedule.operations:
        for device in {unit[device] for device in problem.blocks[block].devices}:
            first[device] = min(first[device], start)
            last[device] = max(last[device], end)
    spans = [(end - start, f"device {device.name!r}")
             for device, start, end in zip(problem.devices, first, last, strict=True) if end > start]
    spans += [(busy, f"link {link!r}") for link, busy in _links(schedule)]
    return max(spans, default=(0.0, "no device"), key=lambda entry: entry[0])


def least_span(schedule: Schedule) -> float:
    """A lower bound on the span of every schedule of the problem: the work of its busiest device or link."""
    problem, n = schedule.problem, schedule.micro_batches
    work = [0.0] * len(problem.devices)
    carried = {link.name: 0.0 for link in problem.links}
    for block in problem.blocks:
        for device in block.devices:
            work[device] += n * block.duration
        for dependency in block.after:
            if dependency.link is not None:
                carried[dependency.link] += max(0, n - dependency.distance) * dependency.lag
    return max([*work, *carried.values()], default=0.0)


def _links(schedule: Schedule) -> Iterator[tuple[str, float]]:
    """Per link with transfers, a lower bound on the time from the begin of its first transfer to the end of its
    last."""
    problem = schedule.problem
    at = {(o.block, o.micro_batch): o for o in schedule.operations}
    for link in problem.links:
        queue = []  # the sort keys of transfers (in producers' order), their length, and their latest end
        for consumer, block in enumerate(problem.blocks):
            for place, dependency in enumerate(block.after):
                if dependency.link != link.name:
                    continue
                producer = problem.index[dependency.block]
                for m in range(schedule.micro_batches - dependency.distance):
                    made, used = at.get((producer, m)), at.get((consumer, m + dependency.distance))
                    if made is not None and used is not None:
                        queue.append(((made.start, made.end, producer, m, consumer, place), dependency.lag, used.start))
        if not queue:
            continue
        queue.sort()
        begin = math.inf  # the latest begin of the first transfer with which all end in time
        for _, length, due in reversed(queue):
            begin = min(begin, due) - length
        free = begin
        for (_, ready, *_), length, _ in queue:
            free = max(free, ready) + length
        yield link.name, free - begin
