"""Conversion of a sheet's rows to Altair layers.

The critical path in a schedule's picture: outlines of its operations, lines where it continues on another device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import altair as alt

from weft.figures.data import DeviceBand, Record, Sheet, Subject
from weft.figures.frame import ChartData, axis_of, framed, tips
from weft.figures.style import IDLE, INK
from weft.solver.diagnose.critical_path import critical_path

#: Tooltips of a box and of the memory strip: field of the row -> title.
BOX_DETAILS = {"block": "block", "micro-batch": "micro-batch", "job": "job", "class": "class", "device": "device",
               "does": "kind", "start": "start", "end": "end", "duration": "duration", "memory": "memory change"}
LEVEL_DETAILS = {"device": "device", "memory": "memory", "cap": "cap", "from": "from"}


@dataclass(frozen=True, slots=True)
class Scales:
    """Positions ``domain`` on ``width`` pixels, heights 0 to ``height`` downwards, a colour per class, and the classes
    in the legend."""

    domain: tuple[float, float]
    height: float
    width: float
    colours: dict[str, str]
    legend: list[str]

    def x(self, field: str = "x:Q", **options: Any) -> alt.X:
        """Horizontal position."""
        return alt.X(field, scale=alt.Scale(domain=list(self.domain), nice=False, zero=False), **options)

    def y(self) -> alt.Y:
        """Vertical position in pixels from the top."""
        return alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[0, self.height], nice=False, reverse=True))

    def fill(self) -> alt.Fill:
        """Fill by class."""
        legend = alt.Legend(title=None, orient="top", values=self.legend, symbolType="square", symbolStrokeWidth=0,
                            symbolSize=110, labelFontSize=11, columnPadding=14, direction="horizontal")
        return alt.Fill("kind:N", legend=legend,
                        scale=alt.Scale(domain=list(self.colours), range=list(self.colours.values())))


def layers(scales: Scales, sheet: Sheet, time: str, title: str, notes: Sequence[str]) -> alt.LayerChart:
    """The chart of all rows of ``sheet``, the first named below the later ones; ``time``: the title of that axis."""
    tables = ChartData()
    stack = [_rects(scales, tables.add("idle", sheet.idle)).mark_rect(color=IDLE)]
    stack[0] = stack[0].encode(x=scales.x(axis=_time_axis(sheet.axis.ticks(sheet.units[0]), time)))
    if sheet.areas:
        stack.append(_areas(scales, tables.add("memory", sheet.areas)))
    if sheet.boxes:
        faded = any(row["fade"] < 1 for row in sheet.boxes)
        stack.append(_boxes(scales, tables.add("boxes", sheet.boxes), faded=faded))
    if sheet.numbers:
        stack.append(_numbers(scales, tables.add("numbers", sheet.numbers)))
    if sheet.outlines:
        stack.append(_rects(scales, tables.add("outlines", sheet.outlines)).mark_rect(
            fillOpacity=0, stroke="#000000", strokeWidth=2))
    stack.append(_rules(scales, tables.add("rules", sheet.rules)))
    if sheet.arrows:
        stack.append(_arrows(scales, tables.add("arrows", sheet.arrows)))
    stack += _texts(scales, tables, sheet.texts)
    if sheet.hover and sheet.boxes:  # above everything else, so that a number does not hide its box from the pointer
        details = {name: title for name, title in BOX_DETAILS.items() if any(name in row for row in sheet.boxes)}
        stack.append(_details(scales, tables.add("boxes", sheet.boxes), details))
    if sheet.hover and sheet.levels:
        stack.append(_details(scales, tables.add("levels", sheet.levels), LEVEL_DETAILS))
    return framed(stack, tables, (scales.width, scales.height), title, notes)


def _rects(scales: Scales, table: alt.Chart) -> alt.Chart:
    rects: alt.Chart = table.encode(x=scales.x(), x2="x2:Q", y=scales.y(), y2="y2:Q")
    return rects


def _time_axis(ticks: Sequence[tuple[float, str]], title: str) -> alt.Axis:
    labels = "".join(f"abs(datum.value - {place!r}) < {_near(ticks)!r} ? '{label}' : " for place, label in ticks) + "''"
    return axis_of(title, values=[place for place, _ in ticks], labelExpr=labels, grid=False, domain=True, offset=6,
                   labelOverlap=False, labelFlush=False)


def _near(ticks: Sequence[tuple[float, str]]) -> float:
    places = sorted(place for place, _ in ticks)
    return min((b - a for a, b in pairwise(places)), default=1.0) / 3


def _arrows(scales: Scales, table: alt.Chart) -> alt.Chart:
    heads: alt.Chart = table.mark_point(shape="triangle", filled=True, size=34, color=INK, opacity=1)
    return heads.encode(x=scales.x(), y=scales.y(), angle=alt.Angle("angle:Q", scale=None))


def _areas(scales: Scales, table: alt.Chart) -> alt.Chart:
    area: alt.Chart = table.mark_area(interpolate="step-after", opacity=1)
    return area.encode(x=scales.x(), y=scales.y(), y2="y2:Q", fill=scales.fill(), detail="area:N")


def _boxes(scales: Scales, table: alt.Chart, *, faded: bool) -> alt.Chart:
    edge = alt.Stroke("edge:N", scale=None, legend=None)
    boxes: alt.Chart = _rects(scales, table).mark_rect(strokeWidth=0.6)
    boxes = boxes.encode(fill=scales.fill(), stroke=edge)
    if faded:
        boxes = boxes.encode(fillOpacity=alt.FillOpacity("fade:Q", scale=None, legend=None))
    return boxes


def _details(scales: Scales, table: alt.Chart, fields: dict[str, str]) -> alt.Chart:
    """Invisible rectangles with tooltips of ``fields`` (with these titles)."""
    rects: alt.Chart = _rects(scales, table).mark_rect(opacity=0)
    return rects.encode(tooltip=tips(fields))


def _numbers(scales: Scales, table: alt.Chart) -> alt.Chart:
    numbers: alt.Chart = table.mark_text(baseline="middle", color="#111111", dy=0.5)
    return numbers.encode(x=scales.x(), y=scales.y(), text="text:N", size=alt.Size("size:Q", scale=None, legend=None))


def _rules(scales: Scales, table: alt.Chart) -> alt.Chart:
    rules: alt.Chart = table.mark_rule()
    return rules.encode(
        x=scales.x(), x2="x2:Q", y=scales.y(), y2="y2:Q",
        color=alt.Color("colour:N", scale=None, legend=None),
        strokeWidth=alt.StrokeWidth("width:Q", scale=None, legend=None),
        strokeDash=alt.StrokeDash("dash:N", scale=None, legend=None),
    )


def _texts(scales: Scales, tables: ChartData, rows: list[Record]) -> list[alt.Chart]:
    """Labels at pixel positions; one layer per alignment, which cannot be encoded."""
    per_pixel = (scales.domain[1] - scales.domain[0]) / scales.width
    groups: dict[tuple[Literal["left", "center", "right"], bool], list[Record]] = {}
    for row in rows:
        placed = {"x": scales.domain[0] + row["px"] * per_pixel, "y": row["y"], "text": row["text"],
                  "size": row["size"], "colour": row["colour"]}
        groups.setdefault((row["align"], row["bold"]), []).append(placed)
    return [
        tables.add(f"text {align}{' bold' if bold else ''}", members)
        .mark_text(align=align, baseline="middle", fontWeight="bold" if bold else "normal")
        .encode(x=scales.x(), y=scales.y(), text="text:N", color=alt.Color("colour:N", scale=None, legend=None),
                size=alt.Size("size:Q", scale=None, legend=None))
        for (align, bold), members in groups.items()
    ]


#: Colour of the marks: black, not used by boxes or caps.
PATH = "#000000"


def draw_path(sheet: Sheet, shown: Subject, lanes: Sequence[DeviceBand]) -> None:
    """Mark the critical path of ``shown`` on its ``lanes``, one a device."""
    problem = shown.schedule.problem
    runs: list[tuple[tuple[int, ...], float, float]] = []  # devices, from, to: adjacent operations share one outline
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
