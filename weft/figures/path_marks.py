"""The critical path in a schedule's picture: outlines of what runs on it, lines where it goes on elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from weft.figures.data import Lane, Subject
from weft.figures.sheet import Sheet
from weft.solver.diagnose.critical_path import critical_path

__all__ = ["PATH", "draw_path"]

#: Colour of the marks: black, which no box and no cap has.
PATH = "#000000"


def draw_path(sheet: Sheet, shown: Subject, lanes: Sequence[Lane]) -> None:
    """Mark the critical path of ``shown`` on its ``lanes``, one a device."""
    problem = shown.schedule.problem
    runs: list[tuple[tuple[int, ...], float, float]] = []  # devices, from, to: operations that join are one outline
    for step in critical_path(shown.schedule).steps:
        if step.kind != "operation":
            continue
        devices = problem.blocks[step.operation.block].devices
        joins = runs and runs[-1][0] == devices and step.start <= runs[-1][2] + sheet.axis.per_pixel / 100
        if joins:
            runs[-1] = (devices, runs[-1][1], step.end)
        else:
            runs.append((devices, step.start, step.end))
    for devices, start, end in runs:
        for x, x2 in sheet.axis.clip(start, end):
            sheet.outlines += [{"x": x, "x2": x2, "y": lanes[d].top - 1, "y2": lanes[d].bottom + 1} for d in devices]
    for (left, _, end), (entered, start, _) in pairwise(runs):
        leaves, enters = sheet.axis.place(end), sheet.axis.place(start)
        if leaves is None or enters is None:
            continue
        before, after = min(((lanes[a], lanes[b]) for a in left for b in entered),
                            key=lambda pair: abs(pair[0].top - pair[1].top))
        if before.top == after.top:
            middle = (before.top + before.bottom) / 2
            sheet.line(leaves, middle, enters, middle, colour=PATH, width=2.0)
        elif before.top < after.top:
            sheet.line(leaves, before.bottom, enters, after.top, colour=PATH, width=1.5)
        else:
            sheet.line(leaves, before.top, enters, after.bottom, colour=PATH, width=1.5)
