"""From the rows of a sheet to Altair layers, and from a chart to what a renderer takes.

The critical path in a schedule's picture: outlines of what runs on it, lines where it goes on elsewhere.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import altair as alt

from weft.figures.data import DeviceBand, Record, Sheet, Subject
from weft.figures.style import FONT, IDLE, INK, MUTED
from weft.solver.diagnose.critical_path import critical_path
from weft.text.units import TEXT, name_text

#: What an HTML page may do: run what it holds (Vega compiles expressions), show and save images made from it.
POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:"


#: Characters that a heading is cut to.
TITLE = 400

#: What the pointer shows over a box and over the memory strip: field of the row -> title.
BOX_DETAILS = {"block": "block", "micro-batch": "micro-batch", "job": "job", "class": "class", "device": "device",
               "does": "kind", "start": "start", "end": "end", "duration": "duration", "memory": "memory change"}
LEVEL_DETAILS = {"device": "device", "memory": "memory", "cap": "cap", "from": "from"}


@dataclass(frozen=True, slots=True)
class Scales:
    """Places ``domain`` on ``width`` pixels, heights 0 to ``height`` downwards, a colour per class, and the classes
    that the legend names."""

    domain: tuple[float, float]
    height: float
    width: float
    colours: dict[str, str]
    legend: list[str]

    def x(self, field: str = "x:Q", **options: Any) -> alt.X:
        """Horizontal position by place."""
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


@dataclass(frozen=True, slots=True)
class Heading:
    """What stands around the picture: its title, what a reader has to be told, and the title of the time axis."""

    title: str
    notes: list[str]
    time: str


def layers(scales: Scales, sheet: Sheet, heading: Heading) -> alt.LayerChart:
    """The chart of all rows of ``sheet``, the first named below the later ones."""
    tables = _Tables()
    stack = [_rects(scales, tables.add("idle", sheet.idle)).mark_rect(color=IDLE)]
    stack[0] = stack[0].encode(x=scales.x(axis=_time_axis(sheet.axis.ticks(sheet.units[0]), heading.time)))
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
        told = {name: title for name, title in BOX_DETAILS.items() if any(name in row for row in sheet.boxes)}
        stack.append(_details(scales, tables.add("boxes", sheet.boxes), told))
    if sheet.hover and sheet.levels:
        stack.append(_details(scales, tables.add("levels", sheet.levels), LEVEL_DETAILS))
    chart: alt.LayerChart = alt.layer(*stack, width=scales.width, height=scales.height,
                                      title=_title(heading)).configure(
        font=FONT, background="white", padding=12, view=alt.ViewConfig(stroke=None))
    chart.datasets = tables.rows
    return chart


def _title(heading: Heading) -> alt.TitleParams:
    title = alt.TitleParams(heading.title, anchor="start", frame="group", fontSize=14, fontWeight="bold", color=INK,
                            offset=8)
    if heading.notes:
        title = alt.TitleParams(**title.to_dict(), subtitle=heading.notes, subtitleColor=MUTED, subtitleFontSize=11,
                                subtitlePadding=4)
    return title


def specification(chart: alt.LayerChart) -> dict[str, Any]:
    """The Vega-Lite specification of ``chart``: checked by Altair, but for the data, which it checks row by row. Names
    in it are cut, and what cannot be in a picture is replaced: the renderer ends the process where it meets it."""
    bare = chart.copy(deep=False)
    bare.datasets = alt.Undefined
    return {**_texts_shown(bare.to_dict()), "datasets": {
        name: [{key: name_text(value, TEXT) if isinstance(value, str) else value for key, value in row.items()}
               for row in rows] for name, rows in chart.datasets.items()}}


def _texts_shown(part: Any) -> Any:
    """The specification with all texts fit to be drawn; expressions, which are ours, stay as they are."""
    if isinstance(part, dict):
        return {key: value if key == "labelExpr" else _texts_shown(value) for key, value in part.items()}
    if isinstance(part, list):
        return [_texts_shown(value) for value in part]
    return name_text(part, TITLE) if isinstance(part, str) else part


def page(specification: dict[str, Any], title: str, script: str) -> str:
    """A whole HTML page with ``script`` (Vega, Vega-Lite and Vega-Embed): it opens offline.

    The page forbids itself any access to the network.
    """
    options = {"renderer": "svg",
               "actions": {"export": True, "source": False, "compiled": False, "editor": False}}
    data = json.dumps(specification, ensure_ascii=False).replace("<", "\\u003c")  # a name may hold "</script>"
    script = script.replace("</script", "<\\/script")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{html.escape(title)}</title>
<style>body {{ margin: 8px; font-family: {FONT}; }}</style>
<script>{script}</script>
</head>
<body>
<div id="picture"></div>
<script>
vegaEmbed("#picture", {data}, {json.dumps(options)});
</script>
</body>
</html>
"""


class _Tables:
    """The picture's data, by name. Layers refer to them, so that Altair neither copies nor checks (nor limits) them
    row by row every time a layer changes hands."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Record]] = {}

    def add(self, name: str, rows: list[Record]) -> alt.Chart:
        """An empty chart on ``rows``."""
        self.rows[name] = rows
        return alt.Chart(alt.NamedData(name=name))


def _rects(scales: Scales, table: alt.Chart) -> alt.Chart:
    rects: alt.Chart = table.encode(x=scales.x(), x2="x2:Q", y=scales.y(), y2="y2:Q")
    return rects


def _time_axis(ticks: Sequence[tuple[float, str]], title: str) -> alt.Axis:
    labels = "".join(f"abs(datum.value - {place!r}) < {_near(ticks)!r} ? '{label}' : " for place, label in ticks) + "''"
    return alt.Axis(values=[place for place, _ in ticks], labelExpr=labels, title=title, grid=False, domain=True,
                    domainColor="#888888", tickColor="#888888", labelColor=INK, titleColor=INK, labelFontSize=10,
                    titleFontSize=11, titleFontWeight="normal", offset=6, labelOverlap=False, labelFlush=False)


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
    """Invisible rectangles that show ``fields`` (with these titles) under the pointer."""
    rects: alt.Chart = _rects(scales, table).mark_rect(opacity=0)
    return rects.encode(tooltip=[alt.Tooltip(f"{name}:N", title=title) for name, title in fields.items()])


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


def _texts(scales: Scales, tables: _Tables, rows: list[Record]) -> list[alt.Chart]:
    """Labels at pixels of the picture; one layer per alignment, which no encoding can carry."""
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


#: Colour of the marks: black, which no box and no cap has.
PATH = "#000000"


def draw_path(sheet: Sheet, shown: Subject, lanes: Sequence[DeviceBand]) -> None:
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
