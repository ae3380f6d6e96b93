"""Drawing of a schedule, or of the search for it: into a file, or as an Altair chart for a notebook.

Altair is loaded on the first call.

The history of a search: best makespan and proven bound over time, as two step lines with the gap between them shaded.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import altair as alt

from weft.figures.data import Record
from weft.figures.frame import ChartData, along, axis_of, framed, tips, to_file
from weft.solver.schedule import Schedule
from weft.text.units import Unit, figure, time_unit

if TYPE_CHECKING:
    from weft.runtime.plan.timeline import Timeline


#: The times to draw: ``(from, to)`` in the problem's time unit, everything, or the legible part.
Window: TypeAlias = tuple[float, float] | Literal["auto", "all"]


def draw(
    schedule: Schedule,
    path: str | os.PathLike[str],
    *,
    baseline: Schedule | None = None,
    measured: Timeline | Iterable[Any] | None = None,
    title: str | None = None,
    window: Window = "auto",
    critical: bool = False,
) -> None:
    """Draw ``schedule`` into ``path``: ``.html`` (offline, details on hover), ``.svg`` or ``.png``.

    The arguments are those of :func:`chart`. Raises ``ValueError`` for another ending or incompatible arguments, and
    ``OSError`` if the file cannot be written; in both cases no partial file is left behind.
    """
    from weft.figures.picture import build

    to_file(path, title or schedule.problem.name, lambda hover: build(
        schedule, baseline=baseline, measured=measured, title=title, window=window, hover=hover, critical=critical))


def chart(
    schedule: Schedule,
    *,
    baseline: Schedule | None = None,
    measured: Timeline | Iterable[Any] | None = None,
    title: str | None = None,
    window: Window = "auto",
    critical: bool = False,
) -> alt.LayerChart:
    """The Altair chart of ``schedule``.

    ``baseline`` is drawn above it on the same time axis; it may come from another placement, but must use the same
    time unit. ``measured`` has the times of a run of ``schedule``: a :class:`~weft.runtime.plan.timeline.Timeline`, or
    entries of
    ``block`` (name or index), ``micro_batch``, ``rank`` (index of the device), ``start``, ``end`` in the problem's time
    unit, as tuples in this order or as objects with these attributes or keys. It is drawn under the plan and starts
    at 0 with its first entry.

    ``window`` limits the picture to some times. ``"auto"`` draws the whole schedule if its boxes can be distinguished,
    and otherwise its beginning and its end, as noted in the subtitle.

    Memory is shown with its capacity. If ``schedule.solver`` states ``static_memory`` (weights and optimizer state per
    device, in the memory unit), it is the baseline of the activations, and the cap is the sum, or ``gpu_memory`` (a
    number or one per device) if that is stated too.

    ``critical`` outlines the operations on the critical path of ``schedule`` and joins them where it changes devices.

    Raises ``ValueError`` for incompatible arguments.
    """
    from weft.figures.picture import build

    return build(schedule, baseline=baseline, measured=measured, title=title, window=window, hover=True,
                 critical=critical)


def draw_curve(schedule: Schedule, path: str | os.PathLike[str], *, title: str | None = None) -> None:
    """Draw the best makespan and its bound over the time of the search that made ``schedule`` into ``path``.

    The endings and errors are those of :func:`draw`; ``ValueError`` also for a schedule without a history.
    """
    to_file(path, title or schedule.problem.name, lambda hover: build(schedule, title=title, hover=hover))


BEST, BOUND, GAP = "#0072B2", "#9b1535", "#dde6ee"
WIDTH, HEIGHT = 720, 320

#: The earliest drawn time of the search's first event in seconds: a log axis has no 0.
EARLIEST = 1e-3
#: Beyond this ratio of last to first event the time axis is logarithmic.
WIDE = 20.0


def build(schedule: Schedule, *, title: str | None, hover: bool) -> alt.LayerChart:
    """The curve of ``schedule``'s history. Raises ``ValueError`` if it has none, or an invalid one."""
    history = _history(schedule)
    unit = time_unit(schedule.problem, history[-1][1])
    end = max(_seconds(schedule), history[-1][0])
    events = [(max(elapsed, EARLIEST), best / unit.size, bound / unit.size) for elapsed, best, bound in history]
    end = max(end, events[-1][0] * 1.05)  # so that the last event is visible
    tables = ChartData()
    layers = _layers(events, end, unit, tables, hover=hover)
    named = title or f"{schedule.problem.name}, {schedule.micro_batches} micro-batches: how the search went"
    return framed(layers, tables, (WIDTH, HEIGHT), named, [_summary(events, unit)])


def _layers(events: Sequence[tuple[float, float, float]], end: float, unit: Unit, tables: ChartData, *,
            hover: bool) -> list[Any]:
    """The layers of ``events`` (seconds, best, bound) up to ``end``."""
    rows = [{"x": x, "x2": x2, "best": best, "bound": bound, **_details(x, best, bound, unit)}
            for (x, best, bound), (x2, _, _) in pairwise([*events, (end, 0.0, 0.0)]) if x2 > x]
    steps = [*rows, {**rows[-1], "x": end}]

    log = end / events[0][0] > WIDE
    low, high = min(bound for _, _, bound in events), max(best for _, best, _ in events)
    margin = 0.08 * (high - low) or 0.05 * high or 1.0
    span = [max(0.0, low - margin) if low > 0 else 0.0, high + margin]
    x = alt.X("x:Q", scale=alt.Scale(type="log" if log else "linear", domain=[events[0][0] if log else 0.0, end],
                                     nice=False),
              axis=axis_of("seconds of search" + (" (log scale)" if log else ""), grid=False, labelFlush=False))
    table = tables.add("steps", steps)
    y = along(alt.Y, "best", span, f"makespan ({unit.name})" if unit.name else "makespan")
    layers: list[Any] = [
        table.mark_area(interpolate="step-after", color=GAP).encode(x=x, y=y, y2="bound:Q"),
        table.mark_line(interpolate="step-after", color=BOUND, strokeWidth=2, strokeDash=[5, 3]).encode(
            x=x, y=along(alt.Y, "bound", span)),
        table.mark_line(interpolate="step-after", color=BEST, strokeWidth=2.5).encode(x=x, y=y),
        tables.add("improvements", _improvements(rows)).mark_circle(size=28, color=BEST, opacity=1).encode(x=x, y=y),
    ]
    for text, field, colour, shift in _labels(steps[-1], unit, (span[1] - span[0]) / HEIGHT):
        label = tables.add(f"{field} label", [{"x": end, field: steps[-1][field], "text": text}]).mark_text(
            align="left", dx=6, dy=shift, baseline="middle", fontSize=11, color=colour)
        layers.append(label.encode(x=x, y=along(alt.Y, field, span), text="text:N"))
    if hover:
        layers.append(tables.add("spans", rows).mark_rect(opacity=0).encode(
            x=x, x2="x2:Q", tooltip=tips(("after", "makespan", "lower bound", "gap"))))
    return layers


def _history(schedule: Schedule) -> list[tuple[float, float, float]]:
    stated = schedule.solver.get("history")
    if not stated:
        raise ValueError(f"{schedule.problem.name}: the schedule has no history of its search (solver: history), so "
                         "there is nothing to draw")
    try:
        history = [(float(elapsed), float(best), float(bound)) for elapsed, best, bound in stated]
    except (TypeError, ValueError):
        history = []
    if not history or not all(math.isfinite(value) and value >= 0 for entry in history for value in entry) \
            or any(later[0] < earlier[0] for earlier, later in pairwise(history)):
        raise ValueError(f"{schedule.problem.name}: solver: history must hold [seconds, makespan, bound] in order of "
                         "time, finite and 0 or more")
    return history


def _seconds(schedule: Schedule) -> float:
    seconds = schedule.solver.get("seconds")
    return float(seconds) if isinstance(seconds, (int, float)) and math.isfinite(seconds) else 0.0


def _details(elapsed: float, best: float, bound: float, unit: Unit) -> dict[str, str]:
    return {"after": f"{figure(elapsed, 3)} s", "makespan": f"{figure(best, 5)} {unit.name}".strip(),
            "lower bound": f"{figure(bound, 5)} {unit.name}".strip(), "gap": _gap(best, bound)}


def _gap(best: float, bound: float) -> str:
    if best <= bound * (1 + 1e-9):
        return "0 (proven optimal)"
    return f"{best / bound - 1:.2%}" if bound > 0 else "unknown"


def _improvements(rows: list[Record]) -> list[Record]:
    """The events at which the best makespan fell, including the first."""
    return [rows[0], *(later for earlier, later in pairwise(rows) if later["best"] < earlier["best"])]


def _ends(last: Record, unit: Unit) -> tuple[str, ...]:
    return tuple(f"{field} {figure(last[field], 5)} {unit.name}".strip() for field in ("best", "bound"))


def _labels(last: Record, unit: Unit, per_pixel: float) -> Iterator[tuple[str, str, str, float]]:
    """The last values, written to the right of the lines: text, field, colour, and the downward offset that separates
    them."""
    apart = max(0.0, 14 - (last["best"] - last["bound"]) / per_pixel) / 2
    best, bound = _ends(last, unit)
    yield best, "best", BEST, -apart
    yield bound, "bound", BOUND, apart


def _summary(events: list[tuple[float, float, float]], unit: Unit) -> str:
    first, last = events[0], events[-1]
    improvements = sum(later[1] < earlier[1] for earlier, later in pairwise(events))
    return (f"First schedule {figure(first[1], 5)} {unit.name} after {figure(first[0], 3)} s; {improvements} "
            f"improvement{'s' if improvements != 1 else ''}; gap at the end {_gap(last[1], last[2])}. Shaded: what is "
            "open between best and bound.")
