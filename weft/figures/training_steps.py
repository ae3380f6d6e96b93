"""The picture of a training run whose costs change: the time of a step, the best possible and the best single
plan's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import altair as alt

from weft.figures.frame import ChartData, along, framed, to_file
from weft.figures.style import CAP, INK, JOBS, MUTED

WIDTH, HEIGHT = 680, 320


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
