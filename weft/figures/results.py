"""Pictures of results: throughput against the latency of one micro-batch; the step of a training run whose costs
change, beside the best possible and the best single plan; the stages of a graph neural network, plain and fused."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import altair as alt

from weft.figures.frame import ChartData, along, axis_of, framed, tips, to_file, with_room
from weft.figures.style import CAP, INK, JOBS, MUTED
from weft.figures.trade_offs import LatencyPoints
from weft.text.units import shown_memory, time_text

#: Of pictures of training and of stages.
WIDTH, HEIGHT = 680, 320
_FRONT, _BOUND = "#0072B2", "#9b1535"


def draw_latencies(serving: LatencyPoints, path: str | os.PathLike[str], *, title: str | None = None) -> None:
    """Draw ``serving`` to ``path``: ``.html`` (offline, details on hover), ``.svg`` or ``.png``.

    Raises ``ValueError`` for another ending, and ``OSError`` if the file cannot be written.
    """
    to_file(path, title or serving.name, lambda hover: latency_chart(serving, title=title, hover=hover))


def latency_chart(serving: LatencyPoints, *, title: str | None = None, hover: bool = True) -> alt.LayerChart:
    """The Altair chart of ``serving``; ``hover`` adds tooltips."""
    unit, time_name = serving.time_unit, time_text(1.0, serving.time_unit)[1]
    factor = 1e3 if unit == "s" else 1.0  # as in time_text
    rows = [{"x": point.latency * factor, "bound": point.bound * factor, "y": point.throughput,
             "placement": point.placement or serving.name, "latency": f"{point.latency * factor:.6g} {time_name}",
             "lower bound": f"{point.bound * factor:.6g} {time_name}",
             "throughput": f"{serving.rate_text(point)[0]} micro-batches/{unit}",
             "peak per GPU": ", ".join(shown_memory(amount, serving.memory_unit) for amount in point.peak)}
            for point in serving.points]
    xs = with_room(value for row in rows for value in (float(str(row["x"])), float(str(row["bound"]))))
    x = along(alt.X, "x", xs, f"latency of one micro-batch ({time_name})")
    y = along(alt.Y, "y", with_room(point.throughput for point in serving.points), f"micro-batches/{unit}")
    tables = ChartData()
    table = tables.add("points", rows)
    layers: list[Any] = [
        table.mark_line(interpolate="step-after", color=_FRONT, strokeWidth=2).encode(x=x, y=y),
        table.mark_rule(color=_BOUND, strokeWidth=2).encode(x=along(alt.X, "bound", xs), x2="x:Q", y=y),
        table.mark_circle(color=_FRONT, size=70, opacity=1).encode(x=x, y=y, **({} if not hover else {
            "tooltip": tips(("placement", "throughput", "latency", "lower bound", "peak per GPU"))})),
    ]
    return framed(layers, tables, (640, 380), title or f"{serving.name}: latency against throughput", [
        "To the right of the steps is possible; red bars are what is open down to the proven bound."])


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Steps ``first`` to ``last - 1``: seconds of each under the running plan (``title``), under the best of all, and
    under the best single plan (``None``: there is none)."""

    first: int
    last: int
    seconds: float
    best: float
    alone: float | None
    title: str


def draw_training(parts: Sequence[StepTimes], path: str | os.PathLike[str], title: str) -> None:
    """Draw ``parts`` to ``path``: ``.html`` (offline, details on hover), ``.svg`` or ``.png``.

    Raises ``ValueError`` for another ending, and ``OSError`` if the file cannot be written.
    """
    to_file(path, title, lambda hover: training_chart(parts, title, hover=hover))


def training_chart(parts: Sequence[StepTimes], title: str, *, hover: bool = True) -> alt.LayerChart:
    """The Altair chart of ``parts``; ``hover`` adds tooltips."""
    plans = list(dict.fromkeys(part.title for part in parts))
    rows = [{"first": part.first, "last": part.last, "ms": part.seconds * 1e3, "best": part.best * 1e3,
             "alone": None if part.alone is None else part.alone * 1e3, "plan": part.title} for part in parts]
    switches = [{"step": after.first, "to": f"to {after.title}"} for before, after in pairwise(parts)
                if before.title != after.title]
    highest = max([part.seconds for part in parts] + [part.alone for part in parts if part.alone is not None]) * 1.08e3
    x, y = along(alt.X, "first", (0, parts[-1].last), "step"), along(alt.Y, "ms", (0, highest), "ms a step")
    tables = ChartData()
    table, marks = tables.add("parts", rows), tables.add("switches", switches)
    colour = alt.Color("plan:N", scale=alt.Scale(domain=plans, range=[JOBS[i % len(JOBS)] for i in range(len(plans))]),
                       legend=alt.Legend(title=None, orient="bottom", columns=1, labelLimit=WIDTH, labelColor=INK))
    details: dict[str, Any] = {"tooltip": [alt.Tooltip(f"{name}:{kind}", title=name) for name, kind in (
        ("plan", "N"), ("first", "Q"), ("last", "Q"), ("ms", "Q"), ("best", "Q"), ("alone", "Q"))]} if hover else {}
    return framed([
        marks.mark_rule(color=CAP, strokeDash=[4, 3]).encode(
            x="step:Q", **({"tooltip": [alt.Tooltip("to:N")]} if hover else {})),
        table.mark_rule(color=MUTED, strokeWidth=2, strokeDash=[2, 2]).encode(x=x, x2="last:Q", y="alone:Q"),
        table.mark_rule(color=MUTED, strokeWidth=1).encode(x=x, x2="last:Q", y="best:Q"),
        table.mark_rule(strokeWidth=4).encode(x=x, x2="last:Q", y=y, color=colour, **details)],
        tables, (WIDTH, HEIGHT), title, [
            "Dotted: the best single plan. Thin: the best plan of each part. Red: where plans are switched."])


_BAR = 34
#: Stages in execution order; ``fused`` replaces the first three.
_ORDER = ("scatter", "apply_edge", "gather", "fused", "apply_vertex")


def draw_stages(rows: Sequence[tuple[str, str, float, str]], path: str | os.PathLike[str], title: str) -> None:
    """Draw ``rows``, each a layer, a stage, its seconds and its bound, to ``path``: ``.html``, ``.svg``, ``.png``.

    Raises ``ValueError`` for another ending, and ``OSError`` if the file cannot be written.
    """
    to_file(path, title, lambda hover: stages_chart(rows, title, hover=hover))


def stages_chart(rows: Sequence[tuple[str, str, float, str]], title: str, *, hover: bool = True) -> alt.LayerChart:
    """The Altair chart; ``hover`` adds tooltips."""
    fusing = {layer for layer, stage, *_ in rows if stage == "fused"}
    data: list[dict[str, Any]] = []
    for layer in dict.fromkeys(layer for layer, *_ in rows):
        for way in ("", ", fused") if layer in fusing else ("",):
            shown = [row for row in rows if row[0] == layer and (
                row[1] in ("fused", "apply_vertex") if way else row[1] != "fused")]
            at = 0.0
            for _, stage, seconds, bound in sorted(shown, key=lambda row: _ORDER.index(row[1])):
                data.append({"bar": layer + way, "stage": stage.replace("_", " "), "begin": at * 1e3,
                             "end": (at + seconds) * 1e3, "ms": seconds * 1e3, "bound": bound})
                at += seconds
    bars = list(dict.fromkeys(row["bar"] for row in data))
    stages = [stage.replace("_", " ") for stage in _ORDER if any(stage == row[1] for row in rows)]
    colours = [JOBS[_ORDER.index(stage.replace(" ", "_"))] for stage in stages]
    details: dict[str, Any] = {"tooltip": [alt.Tooltip("stage:N"), alt.Tooltip("ms:Q", format=".4g"),
                                           alt.Tooltip("bound:N", title="bound by")]} if hover else {}
    tables = ChartData()
    table = tables.add("stages", data)
    y = alt.Y("bar:N", sort=bars, axis=alt.Axis(title=None, labelColor=INK, labelLimit=220, domainColor="#888888",
                                                tickColor="#888888"))
    boxes = table.mark_bar(height=_BAR * 0.6).encode(
        x=alt.X("begin:Q", axis=axis_of("ms")), x2="end:Q", y=y, color=alt.Color(
            "stage:N", scale=alt.Scale(domain=stages, range=colours),
            legend=alt.Legend(title=None, orient="bottom", labelColor=INK)), **details)
    marks = tables.add("compute", [row for row in data if row["bound"] == "compute"]).mark_rule(
        color=INK, strokeWidth=2, yOffset=_BAR * 0.3 + 2).encode(x="begin:Q", x2="end:Q", y=alt.Y("bar:N", sort=bars))
    return framed([boxes, marks], tables, (WIDTH, _BAR * len(bars)), title, [
        "A line below: bound by compute; all else is bound by memory."])
