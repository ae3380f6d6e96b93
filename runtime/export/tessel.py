"""Tessel's schedule files: the JSON of its ``SchedPlan.save`` (public repository, MIT), out and in.

One object: ``ndevs``; ``blocks[]``, each ``{mid, span, memory, btype, gid, step, device}`` (micro-batch, steps it
takes, memory change on each of its devices, ``forward`` or ``backward``, which block of the micro-batch, first step,
devices); ``repetend``, the first step of the part to be repeated and the one behind it. Steps are whole numbers. There
are no dependencies, no transfers, no names and no capacities in it.

``gid`` is the block's index in the problem's list. Tessel's own files count a micro-batch's blocks by their start.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from weft.runtime.export.forms import MAX_STEPS, ExportError, ranked_steps, require_one_kind
from weft.solver.io.entries import Entry, FormatError, read_json
from weft.solver.io.writing import write_atomically
from weft.solver.late import nx
from weft.solver.problem import Block, BlockKind, Dependency, Device, Number, Problem
from weft.solver.schedule import Operation, Schedule
from weft.solver.ticks import in_whole_numbers
from weft.solver.timing import DeadlockError, time_orders

_TOOL = "Tessel's file"
_TYPES = {BlockKind.FORWARD: "forward", BlockKind.BACKWARD: "backward", BlockKind.INPUT_GRAD: "backward",
          BlockKind.WEIGHT_GRAD: "backward"}


# -- out -----------------------------------------------------------------------------------------------------------


def tessel_to_json(schedule: Schedule) -> dict[str, Any]:
    """The object of ``schedule``.

    A step is the greatest time that all durations and transfers are multiples of; with more than a million such steps
    (Tessel lists each) they are ranks in time instead, see :func:`weft.runtime.export.forms.ranked_steps`. Both
    halves of a split backward are ``backward``; workspace and transfers show only in the times. ``repetend`` is empty,
    at the end, if no stretch of steps has every block once and repeats exactly.

    Raises :class:`~weft.runtime.export.forms.ExportError` for a block of another kind, and for one that takes
    different amounts of memory on its devices.
    """
    problem = schedule.problem
    require_one_kind(schedule, _TOOL)
    for block in problem.blocks:
        if block.kind not in _TYPES:
            raise ExportError(f"{_TOOL} cannot express {problem.name!r}: block {block.name!r} is of kind {block.kind}, "
                              "it has forward and backward blocks only")
        if len(set(block.memory)) > 1:
            raise ExportError(f"{_TOOL} cannot express {problem.name!r}: block {block.name!r} takes "
                              f"{', '.join(map(str, block.memory))} on its devices, it has one amount for all of them")
    steps = _exact_steps(schedule) or ranked_steps(schedule, _TOOL)
    blocks = []
    for operation, (step, span) in zip(schedule.operations, steps, strict=True):
        block = problem.blocks[operation.block]
        blocks.append({"mid": operation.micro_batch, "span": span, "memory": block.memory[0],
                       "btype": _TYPES[block.kind], "gid": operation.block, "step": step,
                       "device": list(block.devices)})
    return {"ndevs": len(problem.devices), "blocks": blocks, "repetend": list(_repetend(schedule, steps))}


def save_tessel(schedule: Schedule, path: str | os.PathLike[str]) -> None:
    """Write :func:`tessel_to_json` to ``path``, whole or not at all. Raises ``OSError`` too."""
    write_atomically(path, json.dumps(tessel_to_json(schedule), allow_nan=False) + "\n")


def _exact_steps(schedule: Schedule) -> list[tuple[int, int]] | None:
    """Times in their own unit; ``None`` if that makes too many steps, or starts are not multiples of it."""
    lags = [dependency.lag for _, _, dependency in schedule.problem.dependencies() if dependency.lag]
    _, unit = in_whole_numbers([*(block.duration for block in schedule.problem.blocks), *lags])
    if Fraction(schedule.makespan) > unit * MAX_STEPS:
        return None
    steps = []
    for operation in schedule.operations:
        start, end = (Fraction(time) / unit for time in (operation.start, operation.end))
        if abs(start - round(start)) > Fraction(1, 1000) or abs(end - round(end)) > Fraction(1, 1000):
            return None
        steps.append((round(start), round(end) - round(start)))
    return steps


def _repetend(schedule: Schedule, steps: list[tuple[int, int]]) -> tuple[int, int]:
    """The first stretch ``[first, behind)`` of steps in which every block starts once and that can be repeated as
    Tessel repeats a loaded one: with the longest device's span of it as the period; else the end."""
    count, end = len(schedule.problem.blocks), max(step + span for step, span in steps)
    row = sorted((step, operation.block, operation.micro_batch)
                 for operation, (step, _) in zip(schedule.operations, steps, strict=True))
    spans = {operation.block: span for operation, (_, span) in zip(schedule.operations, steps, strict=True)}
    for i in range(len(row) - count + 1):
        window = row[i:i + count]
        behind = row[i + count][0] if i + count < len(row) else end
        if (len({block for _, block, _ in window}) == count and window[-1][0] < behind
                and (i == 0 or row[i - 1][0] < window[0][0]) and _repeats(schedule.problem, window, spans)):
            return window[0][0], behind
    return end, end


def _repeats(problem: Problem, window: list[tuple[int, int, int]], spans: Mapping[int, int]) -> bool:
    """Whether ``window`` may follow itself: its ``(step, block, micro-batch)`` with ``spans`` steps a block. A block
    that waits for one of an earlier stretch must find it there: Tessel considers neighbouring micro-batches only."""
    start = {block: step for step, block, _ in window}
    micro_batch = {block: m for _, block, m in window}
    period = max(max(start[block] + spans[block] for block in row) - min(start[block] for block in row)
                 for row in problem.blocks_on if row)
    for producer, consumer, dependency in problem.dependencies():
        later = micro_batch[producer] - micro_batch[consumer] + dependency.distance  # stretches between the two
        if not 0 <= later <= 1 or start[consumer] + later * period < start[producer] + spans[producer]:
            return False
    return True


# -- in ------------------------------------------------------------------------------------------------------------


class _TesselRow(NamedTuple):
    gid: int
    micro_batch: int
    step: int
    span: int
    memory: Number
    kind: BlockKind
    devices: tuple[int, ...]

    @property
    def same_in_every_micro_batch(self) -> tuple[int, Number, BlockKind, tuple[int, ...]]:
        return self.span, self.memory, self.kind, self.devices


def load_tessel(path: str | os.PathLike[str], problem: Problem | None = None) -> Schedule:
    """Read a Tessel schedule file: see :func:`tessel_from_json`.

    Raises :class:`~weft.solver.io.entries.FormatError`.
    """
    return tessel_from_json(read_json(path), os.fspath(path), problem)


def tessel_from_json(value: Any, where: str = "schedule", problem: Problem | None = None) -> Schedule:
    """The schedule of a Tessel object; ``where`` (a file name) leads every error message.

    ``problem`` defines its blocks: block ``gid`` is its ``gid``-th, on the same devices. The order is the file's, times
    are the earliest under it. Without a problem, times are the file's, and its spans and memory make one in which a
    block waits for all blocks that end before it in every micro-batch: as much as a file without dependencies can show.
    ``makespan_bound`` is 0: nothing is proven. Raises :class:`~weft.solver.io.entries.FormatError`.
    """
    entry = Entry(value, where)
    entry.allow("ndevs", "blocks", "repetend")
    devices = entry.count("ndevs", minimum=1)
    rows = [_row(item, devices) for item in entry.list("blocks")]
    table = _table(rows, where, timed=problem is None)
    if problem is not None:
        _require_same(table, problem, devices, where)
        orders = [[(row.gid, row.micro_batch) for row in sorted(rows, key=lambda row: row.step)
                   if device in row.devices] for device in range(devices)]
        try:
            operations = time_orders(problem, len(table[0]), orders)
        except DeadlockError as error:
            raise FormatError(f"{where}: is no schedule of {problem.name!r}: {error}") from None
    else:
        problem, first = _shown_problem(table, devices, where), min(row.step for row in rows)
        operations = tuple(Operation(row.gid, row.micro_batch, row.step - first, row.step - first + row.span)
                           for row in rows)
    return Schedule(problem, len(table[0]), operations, 0.0, solver={"name": "imported", "source": where})


def _row(entry: Entry, devices: int) -> _TesselRow:
    entry.allow("mid", "span", "memory", "btype", "gid", "step", "device")
    kind = entry.text("btype")
    if kind not in ("forward", "backward"):
        raise FormatError(f"{entry.where}: btype is {kind!r}, it must be forward or backward")
    on = entry.get("device")
    if (not isinstance(on, list) or not on or len(set(map(str, on))) != len(on)
            or not all(isinstance(d, int) and not isinstance(d, bool) and 0 <= d < devices for d in on)):
        raise FormatError(f"{entry.where}: device is {json.dumps(on):.60}, it must be a list of different devices from "
                          f"0 to {devices - 1}")
    return _TesselRow(entry.count("gid"), entry.count("mid"), entry.count("step"), entry.count("span", minimum=1),
                      entry.number("memory"), BlockKind(kind), tuple(on))


def _table(rows: list[_TesselRow], where: str, *, timed: bool) -> list[list[_TesselRow]]:
    """Per block, its instance of every micro-batch; ``timed``: of one span, as steps are times and no ranks."""
    found: dict[tuple[int, int], _TesselRow] = {}
    for i, row in enumerate(rows):
        if found.setdefault((row.gid, row.micro_batch), row) is not row:
            raise FormatError(f"{where}: blocks[{i}]: block {row.gid} of micro-batch {row.micro_batch} is there twice")
    blocks, n = max((gid for gid, _ in found), default=-1) + 1, max((m for _, m in found), default=-1) + 1
    if not found:
        raise FormatError(f"{where}: blocks is empty, a schedule has at least one")
    if len(found) != blocks * n:
        gid, m = next((gid, m) for gid in range(blocks) for m in range(n) if (gid, m) not in found)
        raise FormatError(f"{where}: block {gid} of micro-batch {m} is missing")
    table = [[found[gid, m] for m in range(n)] for gid in range(blocks)]
    for gid, instances in enumerate(table):
        for row in instances:
            mine, first = row.same_in_every_micro_batch, instances[0].same_in_every_micro_batch
            if mine[1:] != first[1:] or (timed and mine != first):
                raise FormatError(f"{where}: block {gid} of micro-batch {row.micro_batch} differs from that of "
                                  "micro-batch 0 in span, memory, btype or device" + (
                                      "" if mine[1:] != first[1:] else "; with the block problem that it is of its "
                                      "order is read alone"))
    return table


def _shown_problem(table: list[list[_TesselRow]], devices: int, where: str) -> Problem:
    before: nx.DiGraph[int] = nx.DiGraph()
    before.add_nodes_from(range(len(table)))
    before.add_edges_from((a, b) for a, one in enumerate(table) for b, other in enumerate(table) if a != b and all(
        first.step + first.span <= second.step for first, second in zip(one, other, strict=True)))
    direct = nx.transitive_reduction(before)
    blocks = tuple(Block(f"b{gid:02d}", row.kind, row.devices, row.span, (row.memory,), (),
                         tuple(Dependency(f"b{a:02d}") for a in sorted(direct.predecessors(gid))))
                   for gid, (row, *_) in enumerate(table))
    return Problem(Path(where).stem or "schedule", tuple(Device(f"gpu{d}") for d in range(devices)), blocks,
                   time_unit="step", memory_unit="unit")


def _require_same(table: list[list[_TesselRow]], problem: Problem, devices: int, where: str) -> None:
    if (len(problem.devices), len(problem.blocks)) != (devices, len(table)):
        raise FormatError(f"{where}: has {len(table)} blocks on {devices} devices, but the problem {problem.name!r} "
                          f"has {len(problem.blocks)} on {len(problem.devices)}")
    for gid, (row, *_) in enumerate(table):
        block = problem.blocks[gid]
        if set(block.devices) != set(row.devices) or _TYPES.get(block.kind) != row.kind:
            raise FormatError(f"{where}: block {gid} is {row.kind} on devices {list(row.devices)}, but the problem's "
                              f"block {gid}, {block.name!r}, is {block.kind} on {list(block.devices)}; list its blocks "
                              "as the file counts them")
