"""A schedule as a trace for ui.perfetto.dev or chrome://tracing (the Chrome "Trace Event Format", JSON).

One process shows the plan, with one thread per device; a second one shows the measured timeline, if any. If devices
have lanes, each device has such processes, whose threads are the device and its lanes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, TypeAlias

from weft.runtime.plan.lowering import routes
from weft.runtime.plan.program import RankMap
from weft.runtime.plan.timeline import Timeline, places
from weft.solver.io.writing import write_atomically
from weft.solver.names import Names
from weft.solver.problem import BlockKind, Problem
from weft.solver.schedule import Operation, Schedule

Event: TypeAlias = dict[str, Any]

PLAN, RUN = 1, 2  # processes; threads are devices + 1, since 0 is the idle thread of a machine

#: Microseconds in a time unit. Units other than time are drawn as milliseconds.
MICROSECONDS = {"s": 1e6, "ms": 1e3, "us": 1.0, "µs": 1.0, "ns": 1e-3}

#: Names of the trace viewer's own colours, near those of the pictures.
COLOURS = {BlockKind.FORWARD: "thread_state_running", BlockKind.BACKWARD: "thread_state_iowait",
           BlockKind.INPUT_GRAD: "terrible", BlockKind.WEIGHT_GRAD: "good",
           BlockKind.RECOMPUTE: "rail_response", BlockKind.COLLECTIVE: "yellow", BlockKind.OTHER: "grey"}

#: Arrows start and end this share of a slice inside it: at its edge they would belong to its neighbour.
INSIDE = 1e-3


def trace(schedule: Schedule, measured: Timeline | None = None) -> dict[str, Any]:
    """The trace of ``schedule``, a JSON object with times in microseconds.

    Every operation is a complete event on each of its devices, named by kind and micro-batch (``F3``), and by its job
    where there are several; block, devices and memory are among its arguments, and the class where micro-batches
    differ. Every device has a counter of the memory its blocks hold, in the problem's unit,
    and an arrow leads from a block to each that waits for it on another device. ``measured`` is a run of the same
    schedule. Raises ``ValueError`` if it names a block or a rank that the schedule does not have.
    """
    scale = MICROSECONDS.get(schedule.problem.time_unit, 1e3)
    events = [*_header(schedule, PLAN, "weft plan"), *_operations(schedule, scale), *_counters(schedule, scale),
              *_arrows(schedule, scale)]
    if measured is not None:
        events += [*_header(schedule, RUN, "measured"), *_measured(schedule, measured, scale)]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {
        "problem": schedule.problem.name, "schedule": str(schedule.solver.get("name", "")),
        "time_unit": schedule.problem.time_unit, "microseconds_per_unit": scale,
    }}


def save_trace(schedule: Schedule, path: str | os.PathLike[str], measured: Timeline | None = None) -> None:
    """Write :func:`trace` to ``path`` atomically. Raises ``OSError``."""
    write_atomically(path, json.dumps(trace(schedule, measured), allow_nan=False, ensure_ascii=False) + "\n")


def _header(schedule: Schedule, process: int, name: str) -> Iterator[Event]:
    problem, named = schedule.problem, set[int]()
    for device, description in enumerate(problem.devices):
        pid = _process(problem, process, device)
        if pid not in named:
            owner = f"{name}: {problem.devices[problem.pool_of[device]].name}" if problem.has_lanes else name
            yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": owner}}
            yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}}
            named.add(pid)
        yield {"ph": "M", "pid": pid, "tid": device + 1, "name": "thread_name", "args": {"name": description.name}}
        yield {"ph": "M", "pid": pid, "tid": device + 1, "name": "thread_sort_index", "args": {"sort_index": device}}


def _process(problem: Problem, process: int, device: int) -> int:
    """The process number of the device's thread: the plan's or the run's, or, with lanes, that of its device."""
    return process + 2 * problem.pool_of[device] if problem.has_lanes else process


def _operations(schedule: Schedule, scale: float) -> Iterator[Event]:
    problem, names = schedule.problem, Names(schedule)
    for operation in schedule.operations:
        block = problem.blocks[operation.block]
        for device in block.devices:
            event = _slice(names, operation, PLAN, device, operation.start * scale, operation.end * scale)
            event["args"] |= {"devices": [problem.devices[d].name for d in block.devices],
                              "memory": block.memory_on(device)}
            if block.workspace_on(device):
                event["args"]["workspace"] = block.workspace_on(device)
            yield event


def _slice(names: Names, operation: Operation, process: int, device: int, start: float, end: float) -> Event:
    """A complete event from ``start`` to ``end`` in microseconds.

    Both are rounded to the viewers' nanoseconds before the subtraction, so that rounding cannot make a slice overlap
    the next one, which viewers would draw inside it.
    """
    first, last = round(start * 1000), round(end * 1000)
    problem, micro_batch = names.schedule.problem, names.micro_batch(operation)
    kind, job, class_ = (problem.blocks[operation.block].kind, names.job(operation.block),
                         names.class_of(operation.block))
    return {"ph": "X", "pid": _process(problem, process, device), "tid": device + 1,
            "name": f"{kind.letter}{micro_batch}" + ("" if job is None else f" {job}"),
            "cat": str(kind), "cname": COLOURS[kind], "ts": first / 1000, "dur": (last - first) / 1000,
            "args": {"block": names.block(operation.block), "micro_batch": micro_batch,
                     **({} if job is None else {"job": job}), **({} if class_ is None else {"class": class_})}}


def _counters(schedule: Schedule, scale: float) -> Iterator[Event]:
    for device, description in enumerate(schedule.problem.devices):
        if description.lane_of is not None:
            continue
        levels = dict(schedule.memory_profile(device))  # of several steps at one time the last one counts
        for time, level in levels.items():
            yield {"ph": "C", "pid": _process(schedule.problem, PLAN, device), "name": f"memory of {description.name}",
                   "ts": time * scale, "args": {schedule.problem.memory_unit or "memory": level}}


def _arrows(schedule: Schedule, scale: float) -> Iterator[Event]:
    problem = schedule.problem
    times = {(operation.block, operation.micro_batch): operation for operation in schedule.operations}
    carried, ranks = routes(problem), RankMap.of(problem)
    number = 0
    for producer, consumer, dependency in problem.dependencies():
        source = problem.blocks[producer].devices
        targets = [device for device in problem.blocks[consumer].devices if device not in source]
        senders = {target: sender for sender, target, _ in carried[producer]}
        at = {rank: ranks.held(rank, producer)[0] for rank in ranks.of_block(producer)}  # on each rank
        for micro_batch in range(dependency.distance, schedule.micro_batches if targets else 0):
            before, after = times[producer, micro_batch - dependency.distance], times[consumer, micro_batch]
            leave = before.end - INSIDE * (before.end - before.start)
            arrive = after.start + INSIDE * (after.end - after.start)
            for target in targets:
                number += 1
                ends = {"name": "transfer", "cat": "transfer", "id": number}
                rank = ranks.of_device[target]
                sender = at[senders.get(rank, rank)]  # if the rank ran it itself, from another of its lanes
                yield {"ph": "s", "pid": _process(problem, PLAN, sender), **ends, "tid": sender + 1,
                       "ts": leave * scale}
                yield {"ph": "f", "bp": "e", "pid": _process(problem, PLAN, target), **ends, "tid": target + 1,
                       "ts": arrive * scale}


def _measured(schedule: Schedule, run: Timeline, scale: float) -> Iterator[Event]:
    names, known = Names(schedule), places(schedule)
    for entry in run.operations:
        place = known.get((entry.block, entry.micro_batch, entry.rank))
        if place is None:
            raise ValueError(f"the measured timeline has block {entry.block!r} on rank {entry.rank}, which the "
                             f"schedule of {schedule.problem.name!r} does not have: it was measured on another plan")
        start, end = (time / run.seconds_per_unit * scale for time in (entry.start, entry.end))
        for device in place[1]:
            yield _slice(names, place[0], RUN, device, start, end)
