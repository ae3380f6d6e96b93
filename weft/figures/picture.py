"""The picture of a schedule as one layered Altair chart.

Time runs to the right; heights are laid out here in pixels, so that lanes of different schedules line up exactly and
one chart holds boxes, memory and labels. Vega draws it without a browser (vl-convert).
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import altair as alt

from solver.schedule import Schedule
from weft.figures import marks
from weft.figures.axis import TimeAxis, time_axis
from weft.figures.data import Lane, Measured, Row, Subject, boxes, memory_steps, read_measured, repetend_span, subject
from weft.figures.style import (
    CAP,
    INK,
    KINDS,
    MEMORY,
    MUTED,
    STATIC,
    TINTS,
    Unit,
    figure,
    joined,
    kind_label,
    memory_unit,
    text_width,
    time_unit,
    tint,
)

__all__ = ["build", "render"]

WIDTH = 960
HEADER = 21.0
BAND = 17.0
#: A cap this many times above the highest level is named, not drawn: on its scale the levels would be flat.
FAR_CAP = 2.6


@dataclass(frozen=True, slots=True)
class Heights:
    """Pixels: a lane of boxes, the memory under it, the space to the next device, fonts of numbers and labels."""

    lane: float
    memory: float
    space: float
    number: float
    label: float


def _heights(devices: int, memory: bool, measured: bool) -> Heights:
    if devices <= 8:
        heights = Heights(20, 24, 10, 10, 11)
    elif devices <= 16:
        heights = Heights(15, 15, 7, 9, 10)
    elif devices <= 32:
        heights = Heights(12, 9, 5, 8, 9)
    else:
        heights = Heights(8, 5, 3, 6, 7)
    return Heights(heights.lane + (2 + heights.lane * 0.5 if measured else 0), heights.memory if memory else 0,
                   heights.space if memory else heights.space / 2, heights.number, heights.label)


@dataclass
class Sheet:
    """The rows of every layer, gathered panel by panel."""

    axis: TimeAxis
    units: tuple[Unit, Unit]
    heights: Heights
    memory_top: float
    hover: bool
    idle: list[Row] = field(default_factory=list)
    boxes: list[Row] = field(default_factory=list)
    areas: list[Row] = field(default_factory=list)
    levels: list[Row] = field(default_factory=list)
    rules: list[Row] = field(default_factory=list)
    texts: list[Row] = field(default_factory=list)
    arrows: list[Row] = field(default_factory=list)

    def text(self, text: str, y: float, size: float, *, x: float, colour: str = INK, align: str = "left",
             bold: bool = False) -> None:
        """Write ``text`` at ``x`` pixels from the left end of the axis, its middle at height ``y``."""
        self.texts.append({"text": text, "px": x, "y": y, "size": size, "colour": colour, "align": align,
                           "bold": bold})

    def line(self, x: float, y: float, x2: float, y2: float, *, colour: str = INK, width: float = 1.0,
             dash: Sequence[float] = ()) -> None:
        """A straight line; ``x`` and ``x2`` are places on the axis."""
        self.rules.append({"x": x, "y": y, "x2": x2, "y2": y2, "colour": colour, "width": width, "dash": list(dash)})


def build(
    schedule: Schedule,
    *,
    baseline: Schedule | None,
    measured: Iterable[Any] | None,
    title: str | None,
    window: tuple[float, float] | str,
    hover: bool,
) -> alt.LayerChart:
    """The chart; :func:`weft.figures.chart` says what the arguments mean. ``hover`` adds tooltips."""
    if not schedule.operations:
        raise ValueError("the schedule has no operations, there is nothing to draw")
    run = None if measured is None else read_measured(measured, schedule)
    panels = [subject(s) for s in (baseline, schedule) if s is not None]
    for label in ("time_unit", "memory_unit"):
        found = [getattr(panel.schedule.problem, label) for panel in panels]
        if len(set(found)) > 1:
            raise ValueError(f"the baseline's {label} is {found[0]!r} and the schedule's is {found[1]!r}; "
                             "they are drawn on one axis and must agree")
    longest = max([panel.schedule.makespan for panel in panels] + ([run.end] if run else []))
    axis = time_axis([panel.schedule for panel in panels], longest, window, WIDTH)
    memory_top = _memory_top(panels)
    devices = max(len(panel.schedule.problem.devices) for panel in panels)
    problem = schedule.problem
    sheet = Sheet(axis, (time_unit(problem, longest), memory_unit(problem, memory_top)),
                  _heights(devices, memory_top > 0, run is not None), memory_top, hover)

    top, ends = 0.0, []
    for shown in panels:
        is_last = shown is panels[-1]
        bottom = _panel(sheet, shown, top, run if is_last else None)
        ends.append((shown.schedule.makespan, top, bottom))
        top = bottom + (16 if not is_last else 0)
    _makespans(sheet, panels, ends)
    _cuts(sheet, top)
    return _assemble(sheet, panels, top, title or _title(schedule), _notes(sheet, panels, longest, window))


def render(picture: alt.LayerChart, ending: str, title: str) -> str | bytes:
    """The file content of ``picture`` for the ending ``.html``, ``.svg`` or ``.png``."""
    if ending == ".png":
        image = io.BytesIO()
        picture.save(image, format="png", scale_factor=2)
        return image.getvalue()
    if ending == ".svg":
        drawing = io.StringIO()
        picture.save(drawing, format="svg")
        return drawing.getvalue()
    return marks.page(picture, title)


# -- one panel ---------------------------------------------------------------------------------------------------


def _panel(sheet: Sheet, shown: Subject, top: float, run: Measured | None) -> float:
    """Lay out one schedule from height ``top``; its lower end."""
    schedule, heights = shown.schedule, sheet.heights
    name, facts = shown.name, _facts(shown, sheet.units[0], run)
    sheet.text(name, top + 8, 12, x=0, bold=True)
    sheet.text(facts, top + 8, 11, x=text_width(name, 12, bold=True) + 14, colour=MUTED)
    y = top + HEADER
    span = repetend_span(schedule)
    if span is not None:
        _phases(sheet, schedule, span, y)
        y += BAND
    plan, lanes = [], []
    for device, description in enumerate(schedule.problem.devices):
        lane = Lane(y, y + heights.lane)
        if run is not None:
            split = y + heights.lane / 3
            plan.append(Lane(y, split - 1))
            lane = Lane(split + 1, y + heights.lane)
            if heights.label >= 9:
                sheet.text("planned", (y + split) / 2, 8, x=WIDTH + 5, colour=MUTED)
                sheet.text("measured", (lane.top + lane.bottom) / 2, 8, x=WIDTH + 5, colour=MUTED)
        lanes.append(lane)
        end = max(schedule.makespan, run.end if run else 0.0)
        sheet.idle += [{"x": x, "x2": x2, "y": lane.top, "y2": lane.bottom} for x, x2 in sheet.axis.clip(0.0, end)]
        sheet.text(description.name, (lane.top + lane.bottom) / 2, heights.label, x=-8, align="right")
        y += heights.lane
        if heights.memory:
            _memory(sheet, shown, device, y + 2, y + heights.memory)
            y += heights.memory
        y += heights.space
    rows = schedule.device_orders
    size = heights.number
    if run is not None:
        sheet.boxes += boxes(shown, rows, plan, sheet.axis, sheet.units, size=size, outline=True, hover=sheet.hover)
        rows = run.rows
    sheet.boxes += boxes(shown, rows, lanes, sheet.axis, sheet.units, size=size, hover=sheet.hover)
    return y - heights.space


def _facts(shown: Subject, unit: Unit, run: Measured | None) -> str:
    schedule = shown.schedule
    length = unit.show(schedule.makespan)
    if run is not None:
        difference = run.end / schedule.makespan - 1 if schedule.makespan else 0.0
        length = f"planned {length}, measured {unit.show(run.end)} ({_percent(difference)})"
    proof = "proven optimal" if schedule.status == "optimal" else ""
    if not proof and schedule.makespan_bound > 0:
        proof = f"at most {figure(100 * schedule.gap, 2)} % above the optimum"
    return joined([length, f"bubble {100 * schedule.bubble.step:.1f} % of the step", proof])


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "−")


def _phases(sheet: Sheet, schedule: Schedule, span: tuple[float, float], y: float) -> None:
    """Brackets over the lanes: warm-up, repetend, cool-down."""
    assert schedule.repetend is not None
    count = f"repetend × {schedule.repetend.count}"
    for labels, start, end, strong in ((("warm-up",), 0.0, span[0], False),
                                       ((count, f"× {schedule.repetend.count}"), *span, True),
                                       (("cool-down",), span[1], schedule.makespan, False)):
        pieces = list(sheet.axis.clip(start, end))
        for x, x2 in pieces:
            colour = INK if strong else "#9a9a9a"
            inset = min(1.5 * sheet.axis.per_pixel, (x2 - x) / 4)
            sheet.line(x + inset, y + BAND - 4, x2 - inset, y + BAND - 4, colour=colour, width=2)
        for x, x2 in pieces:
            width = (x2 - x) / sheet.axis.per_pixel
            label = next((text for text in labels if text_width(text, 9) + 4 <= width), None)
            if label is not None:
                sheet.text(label, y + BAND - 11, 9, x=sheet.axis.pixel((x + x2) / 2), align="center",
                           colour=INK if strong else MUTED)


# -- memory ------------------------------------------------------------------------------------------------------


def _memory_top(panels: Sequence[Subject]) -> float:
    """The level at the top of every memory strip: the highest cap, or less where that is far above all levels."""
    peak = float(max(max(panel.peaks) for panel in panels))
    caps = [float(cap) for panel in panels for cap in panel.caps if cap is not None and cap <= FAR_CAP * peak]
    return max([peak, *caps])


def _memory(sheet: Sheet, shown: Subject, device: int, top: float, bottom: float) -> None:
    """One device's memory over time between two heights, its cap, its peak."""
    def height(level: float) -> float:
        return bottom - (bottom - top) * level / sheet.memory_top

    base, cap, peak = float(shown.static[device]), shown.caps[device], float(shown.peaks[device])
    over = cap is not None and peak > cap * (1 + 1e-9)
    name = f"{len(sheet.rules)}"  # tells areas apart; any distinct text will do
    for part, steps in enumerate(memory_steps(shown, device, sheet.axis)):
        points = [(x, level) for x, _, level, _ in steps]
        points.append((steps[-1][1], steps[-1][2]))
        sheet.areas += _area(f"{name}/{part}", MEMORY[0], [(x, height(base), height(level)) for x, level in points])
        if base:
            sheet.areas += _area(f"{name}/{part}/base", STATIC[0],
                                 [(x, bottom, height(base)) for x in (points[0][0], points[-1][0])])
        if over and cap is not None:
            sheet.areas += _area(f"{name}/{part}/over", "over the cap",
                                 [(x, height(cap), min(height(cap), height(level))) for x, level in points])
        if sheet.hover:
            sheet.levels += [{
                "x": x, "x2": x2, "y": top, "y2": bottom, "device": shown.schedule.problem.devices[device].name,
                "from": sheet.units[0].show(time, 5), "memory": sheet.units[1].show(level),
                "cap": "none" if cap is None else sheet.units[1].show(cap),
            } for x, x2, level, time in steps]
    label = sheet.heights.label - 2
    for x, x2 in sheet.axis.clip(0.0, shown.schedule.makespan):
        sheet.line(x, bottom, x2, bottom, colour="#bbbbbb", width=0.7)
        if cap is not None and cap <= sheet.memory_top:
            sheet.line(x, height(cap), x2, height(cap), colour=CAP, dash=(3, 2))
    if label < 7:
        return
    sheet.text(f"peak {sheet.units[1].show(peak, 3)}", (top + bottom) / 2 + 1, label, x=-8, align="right",
               colour=CAP if over else MUTED, bold=over)
    if cap is not None:
        far = cap > sheet.memory_top
        sheet.text(f"{'↑ ' if far else ''}cap {sheet.units[1].show(cap, 3)}", top if far else height(cap), label,
                   x=WIDTH + 5, colour=CAP)


def _area(name: str, kind: str, points: Iterable[tuple[float, float, float]]) -> list[Row]:
    return [{"area": name, "kind": kind, "x": x, "y": y, "y2": y2} for x, y, y2 in points]


# -- across panels -----------------------------------------------------------------------------------------------


def _makespans(sheet: Sheet, panels: Sequence[Subject], ends: Sequence[tuple[float, float, float]]) -> None:
    """A vertical rule where each schedule ends, and between two of them what is saved."""
    bottom = ends[-1][2]
    places = [sheet.axis.place(makespan) for makespan, _, _ in ends]
    for shown, place, (makespan, top, own_bottom) in zip(panels, places, ends, strict=True):
        if place is None:
            continue
        sheet.line(place, top + 2, place, own_bottom)
        if own_bottom < bottom:
            sheet.line(place, own_bottom, place, bottom, colour=MUTED, dash=(2, 3))
        label = sheet.units[0].show(makespan)
        head = text_width(shown.name, 12, bold=True) + 14 + text_width(_facts(shown, sheet.units[0], None), 11)
        x = sheet.axis.pixel(place)
        if x - text_width(label, 10) - 8 > head:
            sheet.text(label, top + 8, 10, x=x - 4, align="right")
        elif len(panels) == 1 or x > head:
            sheet.text(label, top + 8, 10, x=x + 4)
    if len(panels) < 2 or places[1] is None:
        return
    saved = ends[1][0] / ends[0][0] - 1
    x, y = sheet.axis.pixel(places[1]), ends[1][1] + HEADER + 5
    sheet.text(_percent(saved), ends[1][1] + 8, 12, x=x + 5, bold=True)
    if places[0] is not None and abs(sheet.axis.pixel(places[0]) - x) >= 14:
        low, high = sorted((places[0], places[1]))
        tip = 4 * sheet.axis.per_pixel
        sheet.line(low + tip, y, high - tip, y, width=1.2)
        sheet.arrows += [{"x": low + tip, "y": y, "angle": 270}, {"x": high - tip, "y": y, "angle": 90}]


def _cuts(sheet: Sheet, bottom: float) -> None:
    """Dotted edges where the time axis leaves something out."""
    for start, end in sheet.axis.cuts():
        inset = 5 * sheet.axis.per_pixel
        for x in (start + inset, end - inset):
            sheet.line(x, HEADER, x, bottom, colour="#aaaaaa", dash=(1, 3))
        sheet.text("…", bottom + 8, 12, x=sheet.axis.pixel((start + end) / 2), align="center", colour=MUTED)


def _title(schedule: Schedule) -> str:
    devices, batches = len(schedule.problem.devices), schedule.micro_batches
    return (f"{schedule.problem.name}, {batches} micro-batch{'es' if batches != 1 else ''} "
            f"on {devices} device{'s' if devices != 1 else ''}")


def _notes(sheet: Sheet, panels: Sequence[Subject], longest: float, window: tuple[float, float] | str) -> list[str]:
    """What a reader has to be told to read the picture."""
    unit, notes = sheet.units[0], []
    parts = sheet.axis.parts
    if len(parts) > 1 or parts[0] != (0.0, longest):
        shown = " and ".join(f"{figure(start / unit.size)}–{figure(end / unit.size)}" for start, end in parts)
        notes.append(f"Shown: {shown} {unit.name} of {unit.show(longest)}.")
    kinds = {row["kind"] for row in sheet.boxes}
    if any(", chunk " in kind for kind in kinds):
        notes.append("Lighter: later chunk of the model on the same device.")
    if any(len(block.devices) > 1 for panel in panels for block in panel.schedule.problem.blocks):
        notes.append("Dark outline: block that holds several devices.")
    return [" ".join(notes)] if notes else []


def _assemble(sheet: Sheet, panels: Sequence[Subject], height: float, title: str, notes: list[str]) -> alt.LayerChart:
    colours, legend = _colours(sheet, panels)
    scales = marks.Scales(sheet.axis.domain, height, WIDTH, colours, legend)
    unit = sheet.units[0].name
    return marks.layers(
        scales,
        idle=sheet.idle, areas=sheet.areas, levels=sheet.levels, boxes=sheet.boxes, number_size=sheet.heights.number,
        rules=sheet.rules, texts=sheet.texts, arrows=sheet.arrows, hover=sheet.hover,
        ticks=sheet.axis.ticks(sheet.units[0]), time_title=f"time ({unit})" if unit else "time",
        title=title, notes=notes,
    )


def _colours(sheet: Sheet, panels: Sequence[Subject]) -> tuple[dict[str, str], list[str]]:
    """Colour per class used in the picture, and the classes that the legend names."""
    used = {row["kind"] for row in sheet.boxes} | {row["kind"] for row in sheet.areas}
    chunks = min(TINTS, 1 + max(max(panel.chunks) for panel in panels))
    colours, legend = {}, []
    for kind, (label, colour) in KINDS.items():
        members = {kind_label(kind, chunk): tint(colour, chunk, chunks) for chunk in range(chunks)}
        if used & members.keys():
            colours |= members
            legend.append(label)
    if STATIC[0] in used:
        legend += [STATIC[0], MEMORY[0]]
    colours |= {MEMORY[0]: MEMORY[1], STATIC[0]: STATIC[1], "over the cap": CAP}
    return colours, legend
