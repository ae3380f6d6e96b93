"""The picture of latencies: throughput against the latency of one micro-batch, the front as steps."""

from __future__ import annotations

import os
from typing import Any

import altair as alt

from weft.figures.frame import ChartData, along, framed, tips, to_file, with_room
from weft.figures.trade_offs import LatencyPoints
from weft.text.units import shown_memory, time_text

WIDTH, HEIGHT = 640, 380
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
    return framed(layers, tables, (WIDTH, HEIGHT), title or f"{serving.name}: latency against throughput", [
        "To the right of the steps is possible; red bars are what is open down to the proven bound."])
