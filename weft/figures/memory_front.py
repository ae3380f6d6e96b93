"""The picture of a sweep: throughput against memory, weft's Pareto front as a line, known schedules as marks.

One sort of mark, shape and colour, is one schedule at every point; larger marks do more work in a step.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import altair as alt

from weft.figures.data import Record
from weft.figures.frame import ChartData, along, framed, tips, to_file, with_room
from weft.figures.style import INK, MUTED, text_width
from weft.figures.trade_offs import Rival, SolvedPoint, TradeOff
from weft.solver.baselines import BASELINES
from weft.solver.problem import Number
from weft.text.tables import non_dominated
from weft.text.units import figure, memory_text, shown_memory, shown_time

WIDTH, HEIGHT = 860, 470
OWN = "weft"
#: Okabe and Ito's colours (see :mod:`weft.figures.style`), without black, which is weft's.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C")
_SHAPES = ("square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
#: Areas of marks, for the least and the most work in a step.
_SIZES = (45.0, 110.0)
#: The factor by which weft's marks are larger: tied known schedules are drawn on top of them.
_OWN_SIZE = 1.8
_LABEL = 10.0


def draw_front(sweep: TradeOff, path: str | os.PathLike[str], *, title: str | None = None) -> None:
    """Draw ``sweep`` to ``path``: ``.html`` (offline, details on hover), ``.svg`` or ``.png``.

    Raises ``ValueError`` for another ending or a sweep without rows, and ``OSError`` if the file cannot be written.
    """
    to_file(path, title or sweep.name, lambda hover: front_chart(sweep, title=title, hover=hover))


def front_chart(sweep: TradeOff, *, title: str | None = None, hover: bool = True) -> alt.LayerChart:
    """The Altair chart of ``sweep``; ``hover`` adds tooltips. Raises ``ValueError`` for a sweep without rows."""
    if not sweep.rows:
        raise ValueError("the sweep has no solved points, there is nothing to draw")
    sheet = _Sheet(sweep, hover)
    sheet.lay_out()
    return sheet.chart(title or f"{sweep.name}: {sweep.work} per {_time(sweep)} and memory of the fullest GPU")


class _Box(NamedTuple):
    """A rectangle in pixels from the upper left corner."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        return (self.left < other.right and other.left < self.right
                and self.top < other.bottom and other.top < self.bottom)


@dataclass
class _Sheet:
    """The contents of every layer."""

    sweep: TradeOff
    hover: bool
    lines: list[Record] = field(default_factory=list)
    marks: list[Record] = field(default_factory=list)
    others: list[Record] = field(default_factory=list)
    texts: list[Record] = field(default_factory=list)
    _taken: list[_Box] = field(default_factory=list)

    def lay_out(self) -> None:
        """Fill the layers."""
        sweep = self.sweep
        known = _fronts_of_known(sweep)
        self.names = [name for name in BASELINES if any(entry.name == name for entry, _ in known)]
        self.works = sorted({row.work for row in sweep.rows})
        self.x_range = with_room([self._memory(peak) for peak in (
            *(row.peak for row in sweep.rows), *(entry.peak for entry, _ in known))])
        self.y_range = with_room([*(row.throughput for row in sweep.rows), *(entry.throughput for entry, _ in known)])
        for work in self.works:
            self._line([row for row in sweep.rows if row.work == work], f"{work}", whole=False)
        self._line(sweep.rows, "front", whole=True)
        for entry, work in known:
            self._mark(self.others, entry.title, work, entry.peak, entry.throughput, self._known_details(entry, work))
        front = set(map(id, sweep.front))
        for row in sweep.rows:
            self._mark(self.marks, OWN, row.work, row.peak, row.throughput, self._own_details(row),
                       on_front=id(row) in front)
        self._name_lines()
        label = ""
        for row in sweep.front:  # the values that change along the front, where they change
            if self._own_label(row) != label:
                label = self._own_label(row)
                self._name_point(row, label)

    # -- marks and lines -----------------------------------------------------------------------------------------

    def _memory(self, amount: Number) -> float:
        return float(amount) / 2**30 if self.sweep.memory_unit == "B" else float(amount)

    def _line(self, rows: Sequence[SolvedPoint], name: str, *, whole: bool) -> None:
        """The steps of the front of ``rows``: what can be had with so much memory, on to the right edge."""
        front = [rows[i] for i in non_dominated([(row.peak, row.throughput) for row in rows])]
        points = [(self._memory(row.peak), row.throughput) for row in front]
        points.append((self.x_range[1], points[-1][1]))
        if whole or len(self.works) > 1:
            self.lines += [{"x": x, "y": y, "line": name, "whole": whole} for x, y in points]
        if whole:
            for before, after in pairwise(self._pixel(*point) for point in points):
                self._taken.append(_Box(before[0], before[1] - 1, after[0], before[1] + 1))
                self._taken.append(_Box(after[0] - 1, after[1], after[0] + 1, before[1]))

    def _mark(self, layer: list[Record], title: str, work: int, peak: Number, throughput: float,
              details: Record, *, on_front: bool = True) -> None:
        spread = self.works[-1] - self.works[0]
        share = (work - self.works[0]) / spread if spread else 0.5
        size = _SIZES[0] + share * (_SIZES[1] - _SIZES[0])
        x, y = self._memory(peak), throughput
        if title == OWN:
            size *= _OWN_SIZE if on_front else 1.0
        layer.append({"x": x, "y": y, "schedule": title, "size": size, "fade": 1.0 if on_front else 0.35,
                      **(details if self.hover else {})})
        radius = size**0.5 / 2 + 1
        centre = self._pixel(x, y)
        self._taken.append(_Box(centre[0] - radius, centre[1] - radius, centre[0] + radius, centre[1] + radius))

    def _own_details(self, row: SolvedPoint) -> Record:
        proof = "proven optimal" if row.gap == 0 else f"at most {figure(100 * row.gap, 3)} % above the optimum"
        proof += " over the placements considered" if row.covered else ""
        return {"what": self.sweep.label(row.point), "placement": row.placement, "bound": proof,
                **self._details(row, row.work)}

    def _known_details(self, entry: Rival, work: int) -> Record:
        return {"what": "", "placement": entry.placement, "bound": "", **self._details(entry, work)}

    def _details(self, entry: SolvedPoint | Rival, work: int) -> Record:
        sweep = self.sweep
        return {"throughput": " ".join(sweep.throughput_text(entry.throughput)),
                "step": shown_time(entry.makespan, sweep.time_unit),
                "memory": shown_memory(entry.peak, sweep.memory_unit),
                "work": f"{work:,} {sweep.work}"}

    # -- labels --------------------------------------------------------------------------------------------------

    def _pixel(self, x: float, y: float) -> tuple[float, float]:
        low, high = self.x_range
        bottom, top = self.y_range
        return (x - low) / (high - low) * WIDTH, HEIGHT - (y - bottom) / (top - bottom) * HEIGHT

    def _write(self, text: str, x: float, y: float, align: str, *, colour: str = INK, bold: bool = False,
               inside: bool = True) -> bool:
        """Write ``text`` at pixel ``(x, y)`` unless it would cover something."""
        width = text_width(text, _LABEL, bold)
        left = {"left": x, "center": x - width / 2, "right": x - width}[align]
        box = _Box(left, y - _LABEL / 2 - 1, left + width, y + _LABEL / 2 + 1)
        if any(box.meets(other) for other in self._taken):
            return False
        if inside and not (box.left >= 2 and box.right <= WIDTH - 2 and box.top >= 0 and box.bottom <= HEIGHT):
            return False
        self._taken.append(box)
        self.texts.append({"px": x, "py": y, "text": text, "align": align, "colour": colour, "bold": bold})
        return True

    def _name_lines(self) -> None:
        """The work of a line's step, at its right end; where two ends meet, the one with less work moves."""
        if len(self.works) == 1:
            return
        for work in reversed(self.works):
            ends = [line for line in self.lines if line["line"] == f"{work}"]
            _, y = self._pixel(ends[-1]["x"], ends[-1]["y"])
            for shift in (0, 12, -12, 24, -24):
                if self._write(f"{work:,} {self.sweep.work} a step", WIDTH + 6, y + shift, "left", colour=MUTED,
                               inside=False):
                    break

    def _own_label(self, row: SolvedPoint) -> str:
        """What a point was solved for, as far as its place does not say it."""
        axes = ("memory", "micro_batches") if len(self.works) > 1 else ("memory",)
        varied = [name for name in self.sweep.varied if name not in axes]
        if not varied:
            return f"cap {self.sweep.label(row.point, ['memory'])}"
        return self.sweep.label(row.point, varied)

    def _name_point(self, row: SolvedPoint, text: str) -> None:
        x, y = self._pixel(self._memory(row.peak), row.throughput)
        for dx, dy, align in ((-8, -11, "right"), (-10, 0, "right"), (0, -15, "center"), (9, 11, "left"),
                              (0, 15, "center"), (9, -11, "left")):
            if self._write(text, x + dx, y + dy, align):
                return

    # -- layers --------------------------------------------------------------------------------------------------

    def chart(self, title: str) -> alt.LayerChart:
        """The layers, the first named below the later ones."""
        tables = ChartData()
        table = tables.add
        x = along(alt.X, "x", self.x_range,
                  f"peak memory of the fullest GPU ({memory_text(1, self.sweep.memory_unit)[1]})")
        y = along(alt.Y, "y", self.y_range, f"{self.sweep.work} per {_time(self.sweep)}")
        at = {"x": x, "y": y}
        stack = []
        for whole, colour, width, dash in ((False, "#9a9a9a", 1.2, [4, 3]), (True, INK, 2.0, [1, 0])):
            rows = [line for line in self.lines if line["whole"] == whole]
            if rows:
                stack.append(table(f"lines {whole}", rows).mark_line(
                    interpolate="step-after", color=colour, strokeWidth=width, strokeDash=dash).encode(
                        **at, detail="line:N"))
        stack.append(table("weft", self.marks).mark_point(shape="circle", filled=True, color=INK).encode(
            **at, size=alt.Size("size:Q", scale=None, legend=None),
            opacity=alt.Opacity("fade:Q", scale=None, legend=None), **self._tooltip()))
        if self.others:  # above, so that a tie is visible
            stack.append(self._known(table("known", self.others), at))
        for align in ("left", "center", "right"):
            rows = [text for text in self.texts if text["align"] == align]
            if rows:
                stack.append(table(f"texts {align}", rows).mark_text(
                    align=align, baseline="middle", fontSize=_LABEL, clip=False).encode(
                        x=alt.X("px:Q", scale=None), y=alt.Y("py:Q", scale=None), text="text:N",
                        color=alt.Color("colour:N", scale=None, legend=None)))
        return framed(stack, tables, (WIDTH, HEIGHT), title, self._notes())

    def _known(self, table: Any, at: dict[str, Any]) -> Any:
        titles = [BASELINES[name].title for name in self.names]
        places = [list(BASELINES).index(name) for name in self.names]  # the same in every picture
        legend = alt.Legend(title=None, orient="top", direction="horizontal", columns=7, symbolSize=80,
                            symbolStrokeWidth=1.6, labelFontSize=11, columnPadding=14, labelLimit=260)
        colours = [_COLOURS[place % len(_COLOURS)] for place in places]
        shapes = [_SHAPES[(place + place // len(_COLOURS)) % len(_SHAPES)] for place in places]  # each pair once
        return table.mark_point(filled=False, strokeWidth=1.6, opacity=1).encode(
            **at, size=alt.Size("size:Q", scale=None, legend=None),
            color=alt.Color("schedule:N", legend=legend, scale=alt.Scale(domain=titles, range=colours)),
            shape=alt.Shape("schedule:N", legend=legend, scale=alt.Scale(domain=titles, range=shapes)),
            **self._tooltip())

    def _tooltip(self) -> dict[str, Any]:
        details = {"schedule": "schedule", "what": "solved for", "throughput": "throughput", "step": "step",
                   "work": "work in a step", "memory": "peak memory", "placement": "placement", "bound": "proof"}
        return {"tooltip": tips(details)} if self.hover else {}

    def _notes(self) -> list[str]:
        sweep = self.sweep
        notes = ["Black: weft's Pareto front; pale: its points that another one beats."
                 + (" Marks: known schedules that fit, on the same durations (each one's own front)."
                    if self.names else "")]
        if len(self.works) > 1:
            notes.append("Dashed: weft's front for each amount of work a step; larger marks: more work a step.")
        if sweep.unsolved:
            notes.append(f"{len(sweep.unsolved)} points are not solved.")
        return notes


def _fronts_of_known(sweep: TradeOff) -> list[tuple[Rival, int]]:
    """Each known schedule's own front, for each amount of work a step."""
    groups: dict[tuple[str, int], list[Rival]] = {}
    for row in sweep.rows:
        for entry in row.known:
            groups.setdefault((entry.name, row.work), []).append(entry)
    return list(dict.fromkeys(
        (entries[i], work) for (_, work), entries in groups.items()
        for i in non_dominated([(entry.peak, entry.throughput) for entry in entries])))


def _time(sweep: TradeOff) -> str:
    return {"s": "second", "ms": "millisecond"}.get(sweep.time_unit, sweep.time_unit)
