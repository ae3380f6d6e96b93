"""The picture of a schedule as one layered Altair chart.

Time runs to the right; heights are laid out here in pixels, so that lanes of different schedules line up exactly and
one chart holds boxes, memory and labels. Vega draws it without a browser (vl-convert).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from weft.figures import marks
from weft.figures.axis import TimeAxis, time_axis
from weft.figures.data import (
    WIDTH,
    DeviceBand,
    MeasuredRun,
    Sheet,
    Subject,
    boxes,
    heights_for,
    numbers,
    read_measured,
    repetend_span,
    subject,
)
from weft.figures.marks import draw_path
from weft.figures.memory_strip import draw_memory, top_level
from weft.figures.style import (
    INK,
    KINDS,
    MEMORY,
    MUTED,
    OVER,
    STATIC,
    TINTS,
    job_colour,
    joined,
    kind_label,
    text_width,
    tint,
)
from weft.solver.schedule import Schedule
from weft.text.counts import devices_text, micro_batches_text, taken_text
from weft.text.units import Unit, figure, memory_unit, name_text, time_unit

HEADER = 21.0
BAND = 17.0
#: Characters of a device's name beside its row.
LABEL = 24
#: Pixels between a device's row and those of its lanes.
ENGINE_GAP = 1.0
#: Number of micro-batches named in a longer list.
MOST_NAMED = 12


def build(
    schedule: Schedule,
    *,
    baseline: Schedule | None,
    measured: Any,
    title: str | None,
    window: tuple[float, float] | str,
    hover: bool,
    critical: bool = False,
) -> alt.LayerChart:
    """The chart; :func:`weft.figures.drawing.chart` documents the arguments. ``hover`` adds tooltips."""
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
    memory_top = top_level(panels)
    devices = max((len(panel.own) + len(panel.schedule.problem.devices)) // 2 for panel in panels)
    problem = schedule.problem
    sheet = Sheet(axis, (time_unit(problem, longest), memory_unit(problem, memory_top)),
                  heights_for(devices, memory_top > 0), memory_top, hover)

    top, ends = 0.0, []
    for shown in panels:
        is_last = shown is panels[-1]
        band = repetend_span(shown.schedule) is not None or (is_last and _saved(axis, panels) is not None)
        bottom = _panel(sheet, shown, top, run if is_last else None, band, critical and is_last)
        ends.append((shown.schedule.makespan, top, bottom))
        top = bottom + (16 if not is_last else 0)
    _makespans(sheet, panels, ends)
    _cuts(sheet, top)
    return _assemble(sheet, panels, top, title or _title(schedule), _notes(sheet, panels, longest, run))


# -- one panel ---------------------------------------------------------------------------------------------------


def _panel(sheet: Sheet, shown: Subject, top: float, run: MeasuredRun | None, band: bool, critical: bool) -> float:
    """Lay out one schedule from height ``top``; returns its lower end. ``band`` reserves room above the lanes for
    brackets, ``critical`` marks the critical path."""
    schedule, heights = shown.schedule, sheet.heights
    sheet.text(shown.name, top + 8, 12, x=0, bold=True)
    sheet.text(_facts(shown, sheet.units[0], run), top + 8, 11, x=text_width(shown.name, 12, bold=True) + 14,
               colour=MUTED)
    y = top + HEADER
    if band:
        _phases(sheet, schedule, y)
        y += BAND
    problem = schedule.problem
    plan, lanes = [DeviceBand(0, 0)] * len(problem.devices), [DeviceBand(0, 0)] * len(problem.devices)
    end = run.end if run is not None else schedule.makespan
    for device in shown.own:
        for row in (device, *problem.lanes_of[device]):
            height = heights.lane if row == device else heights.engine
            y += 0 if row == device else ENGINE_GAP
            if run is not None:
                plan[row] = DeviceBand(y, y + height / 2)
                if heights.label >= 10 and row == device:
                    sheet.text("planned", y + height / 4, 8, x=WIDTH + 5, colour=MUTED)
                    sheet.text("measured", y + height + 2, 8, x=WIDTH + 5, colour=MUTED)
                y += height / 2 + 2
            lanes[row] = DeviceBand(y, y + height)
            sheet.idle += [{"x": x, "x2": x2, "y": y, "y2": y + height} for x, x2 in sheet.axis.clip(0.0, end)]
            label = heights.label if row == device else max(5.0, heights.label - 2)
            sheet.text(name_text(problem.devices[row].name, LABEL), y + height / 2, label, x=-8, align="right",
                       colour=INK if row == device else MUTED)
            y += height
        if heights.memory:
            draw_memory(sheet, shown, device, y + 2, y + heights.memory)
            y += heights.memory
        y += heights.space
    planned = schedule.device_orders
    if run is not None:
        sheet.boxes += boxes(shown, planned, plan, sheet.axis, sheet.units, pale=True, hover=sheet.hover)
    engines = {device for device, pool in enumerate(problem.pool_of) if device != pool}
    for some, height in ((set(shown.own), heights.lane), (engines, heights.engine)):
        rows = [row if device in some else () for device, row in enumerate(planned if run is None else run.rows)]
        drawn = boxes(shown, rows, lanes, sheet.axis, sheet.units, hover=sheet.hover)
        sheet.boxes += drawn
        sheet.numbers += numbers(drawn, sheet.axis, height)
    if critical:
        draw_path(sheet, shown, lanes if run is None else plan)
    return y - heights.space


def _facts(shown: Subject, unit: Unit, run: MeasuredRun | None) -> str:
    schedule = shown.schedule
    length = unit.show(schedule.makespan)
    if run is not None:
        difference = run.end / schedule.makespan - 1 if schedule.makespan else 0.0
        length = f"planned {length}, measured {unit.show(run.end)} ({_percent(difference)})"
    here = " for this placement" if schedule.solver.get("covered") else ""
    proof = f"proven optimal{here}" if schedule.status == "optimal" else ""
    if not proof and schedule.makespan_bound > 0:
        proof = f"at most {figure(100 * schedule.gap, 2)} % above the optimum{here}"
    placement = name_text(str(schedule.solver.get("placement", "")))
    return joined([placement, length, f"step bubble {100 * schedule.bubble.step:.1f} %", proof])


def _percent(share: float) -> str:
    text = f"{100 * share:+.1f} %".replace("-", "−")
    return "±0 %" if text[1:] == "0.0 %" else text


def _phases(sheet: Sheet, schedule: Schedule, y: float) -> None:
    """Brackets over the lanes: warm-up, repetend, cool-down."""
    span = repetend_span(schedule)
    if span is None or schedule.repetend is None:
        return
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


# -- across panels -----------------------------------------------------------------------------------------------


def _makespans(sheet: Sheet, panels: Sequence[Subject], ends: Sequence[tuple[float, float, float]]) -> None:
    """A vertical rule at the end of each schedule, and the time saved between two of them."""
    bottom = ends[-1][2]
    places = [sheet.axis.place(makespan) for makespan, _, _ in ends]
    for shown, place, (makespan, top, own_bottom) in zip(panels, places, ends, strict=True):
        if place is None:
            continue
        sheet.line(place, top + 2, place, own_bottom)
        if own_bottom < bottom:  # through the lanes of the other schedule, not its header
            sheet.line(place, ends[-1][1] + HEADER, place, bottom, colour=MUTED, dash=(2, 3))
        label = sheet.units[0].show(makespan)
        head = text_width(shown.name, 12, bold=True) + 14 + text_width(_facts(shown, sheet.units[0], None), 11)
        x = sheet.axis.pixel(place)
        if x - text_width(label, 10) - 8 > head:
            sheet.text(label, top + 8, 10, x=x - 4, align="right")
        elif len(panels) == 1 or x > head:
            sheet.text(label, top + 8, 10, x=x + 4)
    if len(panels) < 2 or places[1] is None:
        return
    x, top = sheet.axis.pixel(places[1]), ends[1][1]
    sheet.text(_percent(ends[1][0] / ends[0][0] - 1), top + 8, 12, x=x + 5, bold=True)
    saved = _saved(sheet.axis, panels)
    if saved is not None:
        tip, y = 4 * sheet.axis.per_pixel, top + HEADER + 5
        low, high = saved[0] + tip, saved[1] - tip
        sheet.line(low, y, high, y, width=1.2)
        sheet.arrows += [{"x": low, "y": y, "angle": 270}, {"x": high, "y": y, "angle": 90}]


def _saved(axis: TimeAxis, panels: Sequence[Subject]) -> tuple[float, float] | None:
    """Positions between which an arrow shows the time saved or lost; ``None`` if there is no room for it."""
    places = [axis.place(panel.schedule.makespan) for panel in panels]
    low, high = places[0], places[-1]
    if low is None or high is None or abs(high - low) < 14 * axis.per_pixel:
        return None
    return min(low, high), max(low, high)


def _cuts(sheet: Sheet, bottom: float) -> None:
    """Dotted edges at the cuts of the time axis."""
    for start, end in sheet.axis.cuts():
        inset = 5 * sheet.axis.per_pixel
        for x in (start + inset, end - inset):
            sheet.line(x, HEADER, x, bottom, colour="#aaaaaa", dash=(1, 3))
        sheet.text("…", bottom + 8, 12, x=sheet.axis.pixel((start + end) / 2), align="center", colour=MUTED)


def _title(schedule: Schedule) -> str:
    return (f"{name_text(schedule.problem.name)}, {micro_batches_text(schedule)} on "
            f"{devices_text(schedule.problem)}")


def _notes(sheet: Sheet, panels: Sequence[Subject], longest: float, run: MeasuredRun | None) -> list[str]:
    """Notes needed to read the picture."""
    unit, notes = sheet.units[0], []
    parts = sheet.axis.parts
    if len(parts) > 1 or parts[0] != (0.0, longest):
        shown = ", ".join(f"{figure(start / unit.size)}–{figure(end / unit.size)}" for start, end in parts)
        notes.append(f"Shown: {shown} {unit.name} of {unit.show(longest)}.")
    peak = max(max(panel.peaks) for panel in panels)
    if sheet.heights.memory and peak > sheet.memory_top:
        notes.append(f"Memory is drawn up to {sheet.units[1].show(sheet.memory_top, 3)}.")
    if sheet.heights.memory and (reserve := panels[-1].schedule.solver.get("reserve")):
        notes.append(f"Cap: a GPU's memory without the {sheet.units[1].show(reserve, 3)} that are kept free.")
    if run and sheet.heights.memory:
        notes.append("Memory as planned.")
    kinds = {row["kind"] for row in sheet.boxes}
    if any(", chunk " in kind for kind in kinds):
        lanes = any(panel.schedule.problem.has_lanes for panel in panels)
        notes.append(f"Lighter: later {'block of its kind' if lanes else 'chunk of the model'} on the same device.")
    if any(len(block.devices) > 1 for panel in panels for block in panel.schedule.problem.blocks):
        notes.append(f"{'Thin dark' if sheet.outlines else 'Dark'} outline: block that holds several devices.")
    if sheet.outlines:
        notes.append("Black frames, joined by lines: the critical path; nothing ends sooner unless something on it "
                     "gets shorter.")
    chosen = [f"{panel.name}: {described}" if len(panels) > 1 else described for panel in panels
              if (described := taken_text(panel.schedule.choices))]
    return [*([" ".join(notes)] if notes else []),
            *([f"Options taken: {' | '.join(chosen)}."] if chosen else []), *_classes(panels[-1])]


def _classes(shown: Subject) -> list[str]:
    """The class of each micro-batch, if they differ."""
    lines = []
    for job, row in shown.names.classes.items():
        of_class: dict[str | None, list[int]] = {}
        for m, name in enumerate(row):
            of_class.setdefault(name, []).append(m)
        described = [f"{name} {_some(members)}" for name, members in list(of_class.items())[:MOST_NAMED]]
        more = "" if len(of_class) <= MOST_NAMED else f"; {len(of_class) - MOST_NAMED} more classes"
        lines.append(f"Micro-batches{'' if job is None else f' of {job}'}: {'; '.join(described)}{more}.")
    return lines


def _some(members: Sequence[int]) -> str:
    shown = ", ".join(map(str, members[:MOST_NAMED]))
    return shown if len(members) <= MOST_NAMED else f"{shown}, ..."


def _assemble(sheet: Sheet, panels: Sequence[Subject], height: float, title: str, notes: list[str]) -> alt.LayerChart:
    colours, legend = _colours(sheet, panels)
    scales = marks.Scales(sheet.axis.domain, height, WIDTH, colours, legend)
    unit = sheet.units[0].name
    return marks.layers(scales, sheet, f"time ({unit})" if unit else "time", title, notes)


def _colours(sheet: Sheet, panels: Sequence[Subject]) -> tuple[dict[str, str], list[str]]:
    """Colour per class used in the picture, and the classes in the legend."""
    used = {row["kind"] for row in sheet.boxes} | {row["kind"] for row in sheet.areas}
    chunks = min(TINTS, 1 + max(max(panel.chunks) for panel in panels))
    colours: dict[str, str] = {}
    legend = []
    jobs = dict.fromkeys(job for panel in panels if len(panel.names.jobs) > 1 for job in panel.names.jobs)
    for number, job in enumerate(jobs):
        of_job = {kind_label(kind, 0, job): job_colour(kind, number) for kind in KINDS}
        colours |= of_job
        legend += [label for label in of_job if label in used]
    for kind, (label, colour) in KINDS.items():
        members = {kind_label(kind, chunk): tint(colour, chunk, chunks) for chunk in range(chunks)}
        if used & members.keys():
            colours |= members
            legend.append(label)
    if STATIC[0] in used:
        legend += [STATIC[0], MEMORY[0]]
    colours |= {MEMORY[0]: MEMORY[1], STATIC[0]: STATIC[1], OVER[0]: OVER[1]}
    return colours, legend
