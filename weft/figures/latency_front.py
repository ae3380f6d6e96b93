"""The picture of latencies: throughput against the latency of one micro-batch, the front as steps."""

from __future__ import annotations

import os
from typing import Any

import altair as alt

from weft.figures.picture import render
from weft.figures.style import FONT, INK, MUTED, ending_of
from weft.figures.trade_offs import LatencyPoints
from weft.solver.io.writing import write_atomically
from weft.text.units import memory_text, time_text

WIDTH, HEIGHT = 640, 380
_FRONT, _BOUND = "#0072B2", "#9b1535"


def draw_latencies(serving: LatencyPoints, path: str | os.PathLike[str], *, title: str | None = None) -> None:
    """Draw ``serving`` to ``path``: ``.html`` (offline, details on hover), ``.svg`` or ``.png``.

    Raises ``ValueError`` for another ending, and ``OSError`` if the file cannot be written.
    """
    ending = ending_of(path)
    chart = latency_chart(serving, title=title, hover=ending == ".html")
    write_atomically(path, render(chart, ending, title or serving.name))


def latency_chart(serving: LatencyPoints, *, title: str | None = None, hover: bool = True) -> alt.LayerChart:
    """The Altair chart of ``serving``; ``hover`` adds tooltips."""
    unit, time_name = serving.time_unit, time_text(1.0, serving.time_unit)[1]
    factor = 1e3 if unit == "s" else 1.0  # what time_text shows
    rows = [{"x": point.latency * factor, "bound": point.bound * factor, "y": point.throughput,
             "placement": point.placement or serving.name, "latency": f"{point.latency * factor:.6g} {time_name}",
             "lower bound": f"{point.bound * factor:.6g} {time_name}",
             "throughput": f"{serving.rate_text(point)[0]} micro-batches/{unit}",
             "peak per GPU": ", ".join(" ".join(memory_text(amount, serving.memory_unit)) for amount in point.peak)}
            for point in serving.points]
    values = [value for row in rows for value in (float(str(row["x"])), float(str(row["bound"])))]
    xs, ys = _range(values), _range([point.throughput for point in serving.points])
    x = alt.X("x:Q", scale=alt.Scale(domain=xs, nice=False, zero=False),
              axis=axis_of(f"latency of one micro-batch ({time_name})"))
    y = alt.Y("y:Q", scale=alt.Scale(domain=ys, nice=False, zero=False), axis=axis_of(f"micro-batches/{unit}"))
    table = alt.Chart(alt.NamedData(name="points"))
    layers: list[Any] = [
        table.mark_line(interpolate="step-after", color=_FRONT, strokeWidth=2).encode(x=x, y=y),
        table.mark_rule(color=_BOUND, strokeWidth=2).encode(
            x=alt.X("bound:Q", scale=alt.Scale(domain=xs, nice=False, zero=False)), x2="x:Q", y=y),
        table.mark_circle(color=_FRONT, size=70, opacity=1).encode(x=x, y=y, **({} if not hover else {"tooltip": [
            alt.Tooltip(f"{name}:N", title=name)
            for name in ("placement", "throughput", "latency", "lower bound", "peak per GPU")]})),
    ]
    heading = alt.TitleParams(
        title or f"{serving.name}: latency against throughput",
        subtitle=["To the right of the steps is possible; red bars are what is open down to the proven bound."],
        anchor="start", fontSize=14, color=INK, subtitleColor=MUTED, subtitleFontSize=11, subtitlePadding=4, offset=8)
    chart: alt.LayerChart = alt.layer(*layers, width=WIDTH, height=HEIGHT, title=heading).configure(
        font=FONT, background="white", padding=12, view=alt.ViewConfig(stroke=None))
    chart.datasets = {"points": rows}
    return chart


def axis_of(title: str) -> alt.Axis:
    """An axis in the style of the pictures of trade-offs."""
    return alt.Axis(title=title, gridColor="#eeeeee", domainColor="#888888", tickColor="#888888", labelColor=INK,
                    titleColor=INK, labelFontSize=10, titleFontSize=11, titleFontWeight="normal")


def _range(values: list[float]) -> list[float]:
    low, high = min(values), max(values)
    room = 0.08 * ((high - low) or high)
    return [max(0.0, low - room), high + room]
