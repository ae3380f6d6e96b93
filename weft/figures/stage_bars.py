"""The picture of a graph neural network's stages: a bar of each layer's time, by stage, plain and fused."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import altair as alt

from weft.figures.frame import ChartData, axis_of, framed, to_file
from weft.figures.style import INK, JOBS

WIDTH, BAR = 680, 34
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
    boxes = table.mark_bar(height=BAR * 0.6).encode(
        x=alt.X("begin:Q", axis=axis_of("ms")), x2="end:Q", y=y, color=alt.Color(
            "stage:N", scale=alt.Scale(domain=stages, range=colours),
            legend=alt.Legend(title=None, orient="bottom", labelColor=INK)), **details)
    marks = tables.add("compute", [row for row in data if row["bound"] == "compute"]).mark_rule(
        color=INK, strokeWidth=2, yOffset=BAR * 0.3 + 2).encode(x="begin:Q", x2="end:Q", y=alt.Y("bar:N", sort=bars))
    return framed([boxes, marks], tables, (WIDTH, BAR * len(bars)), title, [
        "A line below: bound by compute; all else is bound by memory."])
