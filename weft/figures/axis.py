"""The time axis: the times drawn, with the middle of a long schedule cut out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from weft.solver.schedule import Schedule
from weft.text.units import Unit, figure

#: Above this many boxes in the fullest lane the middle of a schedule is left out ...
MOST_BOXES = 400
#: ... and about this many are kept at each end.
KEPT_BOXES = 44
#: Pixels between two parts of a cut axis.
CUT_PIXELS = 26


@dataclass(frozen=True)
class TimeAxis:
    """Maps times to positions on an axis of ``width`` pixels. ``parts`` are the drawn ``(from, to)``, in time order.

    Positions are times of the first part; later parts are shifted left so that ``cut`` separates two parts.
    """

    parts: tuple[tuple[float, float], ...]
    width: float

    @property
    def _drawn(self) -> float:
        return sum(end - start for start, end in self.parts)

    @property
    def per_pixel(self) -> float:
        """Time per pixel."""
        return self._drawn / (self.width - CUT_PIXELS * (len(self.parts) - 1))

    @property
    def domain(self) -> tuple[float, float]:
        """First and last position."""
        start = self.parts[0][0]
        return start, start + self.width * self.per_pixel

    def shifts(self) -> Iterator[tuple[float, float, float]]:
        """Per part ``(from, to, shift)``: a time in it is drawn at ``time - shift``."""
        shift = 0.0
        for i, (start, end) in enumerate(self.parts):
            if i:
                shift += start - self.parts[i - 1][1] - CUT_PIXELS * self.per_pixel
            yield start, end, shift

    def cuts(self) -> list[tuple[float, float]]:
        """Positions ``(from, to)`` of the gaps between parts."""
        edges = [(start - shift, end - shift) for start, end, shift in self.shifts()]
        return [(before[1], after[0]) for before, after in pairwise(edges)]

    def clip(self, start: float, end: float) -> Iterator[tuple[float, float]]:
        """The positions of the drawn part of the time from ``start`` to ``end``."""
        for first, last, shift in self.shifts():
            low, high = max(start, first), min(end, last)
            if low < high:
                yield low - shift, high - shift

    def place(self, time: float) -> float | None:
        """The position of ``time``, ``None`` if it is cut out."""
        slack = self.per_pixel / 100
        for first, last, shift in self.shifts():
            if first - slack <= time <= last + slack:
                return min(max(time, first), last) - shift
        return None

    def pixel(self, place: float) -> float:
        """Pixels from the left end of the axis."""
        return (place - self.domain[0]) / self.per_pixel

    def ticks(self, unit: Unit) -> list[tuple[float, str]]:
        """The round times drawn, as ``(position, label in unit)``."""
        rough = self._drawn / unit.size / max(4, self.width / 90)
        magnitude = 10.0 ** math.floor(math.log10(rough))
        step = next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= rough * 0.999)
        ticks = []
        for start, end, shift in self.shifts():
            first, last = (math.ceil(start / unit.size / step - 1e-6), math.floor(end / unit.size / step + 1e-6))
            ticks += [(i * step * unit.size - shift, figure(i * step, 6)) for i in range(first, last + 1)]
        return ticks


def time_axis(
    schedules: Sequence[Schedule], longest: float, window: tuple[float, float] | str, width: float
) -> TimeAxis:
    """The axis for ``schedules`` drawn together, whose last event is at ``longest``. Raises ``ValueError``."""
    if isinstance(window, tuple):
        start, end = window
        if not (math.isfinite(start) and math.isfinite(end) and 0 <= start < end):
            raise ValueError(f"window is {window}, it must be two times (from, to) with 0 <= from < to")
        if start >= longest:
            raise ValueError(f"window starts at {start}, but nothing is drawn after {longest}")
        return TimeAxis(((start, min(end, longest)),), width)
    if window not in ("auto", "all"):
        raise ValueError(f"window is {window!r}, it must be 'auto', 'all' or two times (from, to)")
    fullest = max((order for schedule in schedules for order in schedule.device_orders), key=len)
    if window == "all" or len(fullest) <= MOST_BOXES:
        return TimeAxis(((0.0, longest),), width)
    kept = fullest[KEPT_BOXES].start
    ends = sorted({schedule.makespan for schedule in schedules} | {longest})
    parts = [(0.0, kept)]
    for end in ends:
        start = max(0.0, end - kept)
        if start <= parts[-1][1]:
            parts[-1] = (parts[-1][0], max(end, parts[-1][1]))
        else:
            parts.append((start, end))
    return TimeAxis(tuple(parts), width)
