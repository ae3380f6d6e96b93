"""The strip under a lane: memory over time, its cap, its peak."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.figures.data import WIDTH, Record, Sheet, Subject, memory_steps
from weft.figures.style import CAP, MEMORY, MUTED, OVER, STATIC

#: A cap this many times above the highest level is labelled, not drawn: on its scale the levels would be flat.
FAR_CAP = 6.0
#: Levels are drawn up to this many times the highest cap: a schedule that needs far more would flatten the others.
FAR_LEVEL = 1.5


def top_level(panels: Sequence[Subject]) -> float:
    """The level at the upper edge of every memory strip, in the problem's unit; 0 if no memory is used."""
    peak = float(max(max(panel.peaks) for panel in panels))
    caps = [float(cap) for panel in panels for cap in panel.caps if cap]
    highest = max(caps, default=0.0)
    if len(caps) == sum(len(panel.own) for panel in panels):
        peak = min(peak, FAR_LEVEL * highest)
    return max([peak, *(cap for cap in caps if cap <= FAR_CAP * peak)])


def draw_memory(sheet: Sheet, shown: Subject, device: int, top: float, bottom: float) -> None:
    """One device's memory over time between two heights, its cap, its peak."""
    def height(level: float) -> float:
        return bottom - (bottom - top) * min(1.0, level / sheet.memory_top)

    base, cap, peak = float(shown.static[device]), shown.caps[device], float(shown.peaks[device])
    over = cap is not None and peak > cap * (1 + 1e-9)
    name = f"{top}"  # distinguishes the areas of one strip from the others
    for part, steps in enumerate(memory_steps(shown, device, sheet.axis)):
        points = [(x, level) for x, _, level, _ in steps]
        points.append((steps[-1][1], steps[-1][2]))
        sheet.areas += _area(f"{name}/{part}", MEMORY[0], [(x, height(base), height(level)) for x, level in points])
        if base:
            sheet.areas += _area(f"{name}/{part}/base", STATIC[0],
                                 [(x, bottom, height(base)) for x in (points[0][0], points[-1][0])])
        if over and cap is not None:
            sheet.areas += _area(f"{name}/{part}/over", OVER[0],
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


def _area(name: str, kind: str, points: Iterable[tuple[float, float, float]]) -> list[Record]:
    return [{"area": name, "kind": kind, "x": x, "y": y, "y2": y2} for x, y, y2 in points]
