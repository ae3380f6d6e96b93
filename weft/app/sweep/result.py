"""The result of a sweep: rows of time, throughput and memory, and the non-dominated points among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from weft.app.lib.coverage import others
from weft.app.lib.results import SavedResult
from weft.app.lib.sources import PathLike
from weft.app.sweep.cache import Solved
from weft.app.sweep.points import ChangedSource, Point
from weft.solver.baselines import BASELINES
from weft.solver.problem import Number
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.text.tables import non_dominated, table_of
from weft.text.units import memory_text, time_text

SWEEP_FORMAT = "weft.sweep/1"


@dataclass(frozen=True, slots=True)
class KnownPoint:
    """A known schedule that fits, in the same figures as weft's own in :class:`SweepRow`."""

    name: str
    placement: str
    makespan: float
    throughput: float
    peak: Number

    @property
    def title(self) -> str:
        """Its display name."""
        return BASELINES[self.name].title


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One solved point. Times and memory are in the problem's units.

    ``throughput`` is work per time unit (see :attr:`Sweep.work`), ``peak`` the highest memory use of any device, static
    memory included if known. ``bound`` is a proven lower bound on the makespan of every schedule on every placement
    considered (``covered`` names them, "" if the source is already placed), ``gap`` the most by which ``makespan`` may
    exceed the best, as a share of it. ``known`` are the known schedules that fit, the fastest first. ``added`` marks a
    point added by the sweep because a known schedule needs less memory than the requested points.
    """

    point: Point
    work: int
    placement: str
    makespan: float
    bound: float
    gap: float
    throughput: float
    peak: Number
    known: tuple[KnownPoint, ...] = ()
    added: bool = False
    covered: str = ""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A point without a result, and the reason: it fits no GPU, or there are no costs for it."""

    point: Point
    reason: str


@dataclass(frozen=True)
class Sweep(SavedResult):
    """The result of :func:`weft.sweep`; ``str()`` is the table.

    ``rows`` are in the order of the points. ``work`` is the unit of throughput (``tokens``, ``samples``,
    ``micro-batches``). ``unsolved`` are the points left by an interrupt. ``settings`` are the search options, ``notes``
    other problems. ``cached`` counts the rows from the cache.
    """

    name: str
    devices: int
    time_unit: str
    memory_unit: str
    work: str
    rows: tuple[SweepRow, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    unsolved: tuple[Point, ...] = ()
    cached: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def interrupted(self) -> bool:
        """Whether points are missing because the sweep was interrupted."""
        return bool(self.unsolved)

    @cached_property
    def front(self) -> tuple[SweepRow, ...]:
        """The rows that no other row dominates: none has at most their peak memory and at least their throughput, and
        one of the two better. By rising memory."""
        return tuple(self.rows[i] for i in non_dominated([(row.peak, row.throughput) for row in self.rows]))

    @cached_property
    def ahead(self) -> tuple[KnownPoint, ...]:
        """Known schedules that fit and that no row of weft equals or beats in memory and throughput at once.

        A finished sweep has none, unless refinement was disabled (or each added point led to another).
        """
        return tuple(dict.fromkeys(
            known for row in self.rows for known in row.known
            if not any(other.peak <= known.peak and other.throughput >= known.throughput for other in self.front)))

    @property
    def varied(self) -> tuple[str, ...]:
        """The fields of :class:`Point` in which the points differ."""
        points = [row.point for row in self.rows] + [entry.point for entry in self.left_out] + list(self.unsolved)
        return tuple(name for name in Point.__slots__ if len({getattr(point, name) for point in points}) > 1)

    def throughput_text(self, throughput: float) -> tuple[str, str]:
        """A throughput as text, and its unit."""
        return f"{throughput:.4g}" if throughput < 1e4 else f"{throughput:,.0f}", f"{self.work}/{self.time_unit}"

    def label(self, point: Point, names: Sequence[str] | None = None) -> str:
        """``point`` in words: the varied fields, or the fields ``names``."""
        shown = (self.varied or ("memory", "micro_batches")) if names is None else names
        return ", ".join(text for name in shown if (text := self._field(point, name)))

    def _field(self, point: Point, name: str) -> str:
        if name == "memory":
            return memory_list(point.memory, self.memory_unit)
        if (value := getattr(point, name)) is None:
            return ""
        if name == "micro_batches":
            return f"{value} micro-batch{'es' if value > 1 else ''}"
        if name == "micro_batch_size":
            return f"{value} a micro-batch"
        if name == "recompute":
            return "recompute" if value else "no recompute"
        return " or ".join(value)

    def to_json(self) -> dict[str, Any]:
        """The numbers as plain data (format ``weft.sweep/1``)."""
        front = set(map(id, self.front))
        return {
            "format": SWEEP_FORMAT, "name": self.name, "devices": self.devices, "time_unit": self.time_unit,
            "memory_unit": self.memory_unit, "throughput_unit": self.throughput_text(0)[1],
            "settings": dict(self.settings),
            "rows": [{**asdict(row), "on_front": id(row) in front} for row in self.rows],
            "left_out": [asdict(entry) for entry in self.left_out],
            "unsolved": [asdict(point) for point in self.unsolved],
            "notes": list(self.notes),
        }

    def draw(self, path: PathLike, title: str | None) -> None:
        from weft.figures.memory_front import draw_front

        draw_front(self, path, title=title)

    def table(self) -> Any:
        """The table, to be printed by rich."""
        time_name, memory_name = time_text(1.0, self.time_unit)[1], memory_text(1, self.memory_unit)[1]
        fixed = "" if not self.rows else self.label(
            self.rows[0].point, [name for name in ("micro_batches", "micro_batch_size") if name not in self.varied])
        titles = {"memory": f"{memory_name} a GPU", "micro_batches": "micro-batches", "micro_batch_size": "size",
                  "recompute": "recompute", "shapes": "shapes"}
        texts = ("front", "placement", "best known that fits")
        table = table_of(", ".join(filter(None, (f"{self.name}: {self.devices} GPUs", fixed))), (
            *map(titles.__getitem__, self.varied), *texts[:2], f"{time_name} a step", self.throughput_text(0)[1],
            f"peak {memory_name}", "gap", texts[2]), texts, self.caption())
        for row in self.rows:
            on_front = row in self.front
            marks = ("*" if on_front else "") + ("+" if row.added else "")
            table.add_row(
                *(self._cell(row.point, name) for name in self.varied), marks, row.placement,
                time_text(row.makespan, self.time_unit)[0], self.throughput_text(row.throughput)[0],
                memory_text(row.peak, self.memory_unit)[0], "proven" if row.gap == 0 else f"{row.gap:.1%}",
                _against(row), style="bold" if on_front else None)
        return table

    def _cell(self, point: Point, name: str) -> str:
        value = getattr(point, name)
        if name == "memory":
            return memory_list(value, self.memory_unit, with_unit=False)
        if isinstance(value, bool):
            return "yes" if value else "no"
        return ", ".join(value) if isinstance(value, tuple) else str(value)

    def caption(self) -> str:
        """One line a fact: the front, known schedules ahead of it, what is left out or unsolved."""
        lines = [f"* on the Pareto front: no other point has less memory and more {self.work} per {self.time_unit}"]
        if self.ahead:
            names = ", ".join(dict.fromkeys(known.title for known in self.ahead))
            lines.append(f"{len(self.ahead)} known schedule{'s' if len(self.ahead) > 1 else ''} ahead of weft's points "
                         f"({names}): a point at the memory they need would not be behind")
        added = sum(row.added for row in self.rows)
        if added:
            lines.append(f"+ {added} point{'s' if added > 1 else ''} added where a known schedule needs less memory "
                         "than the points asked for")
        covered = {row.covered for row in self.rows if row.covered}
        if len(covered) == 1:
            over = covered.pop()
            lines.append(f"gaps are over {over}; {others(over)}")
        elif covered:
            lines.append("gaps are over what is covered at each point, which --json names; other shapes may be faster")
        lines += [f"left out: {self.label(entry.point)}: {entry.reason}" for entry in self.left_out]
        if self.unsolved:
            points = len(self.rows) + len(self.left_out) + len(self.unsolved)
            lines.append(f"interrupted: {len(self.unsolved)} of {points} points are not solved")
        return "\n".join([*lines, *self.notes])


def row_of(variant: ChangedSource, solved: Solved, *, added: bool = False) -> SweepRow:
    """The figures of the solution for ``variant``."""
    point, own = variant.point, solved.weft
    bound = float(own.solver.get("bound_over_placements", own.makespan_bound))
    is_best = own.makespan <= bound * (1 + RELATIVE_TOLERANCE)
    work = round(variant.work * point.micro_batches)
    known = [KnownPoint(name, str(schedule.solver.get("placement", "")), schedule.makespan, _throughput(work, schedule),
                        max(schedule.peak_with_static)) for name, schedule in solved.known.items()]
    return SweepRow(point, work, str(own.solver.get("placement", "")), own.makespan, bound,
                    0.0 if is_best else own.makespan / bound - 1, _throughput(work, own), max(own.peak_with_static),
                    tuple(sorted(known, key=lambda entry: entry.makespan)), added, str(own.solver.get("covered", "")))


def _throughput(work: int, schedule: Schedule) -> float:
    """Work per time unit, rounded so that equal makespans, added up in another order, give equal throughput."""
    return float(f"{work / schedule.makespan:.10g}")


def memory_list(amounts: Sequence[Number | None], unit: str, *, with_unit: bool = True) -> str:
    """Each device's memory: one amount if all are equal."""
    texts = []
    for amount in amounts:
        number, name = ("unlimited", "") if amount is None else memory_text(amount, unit)
        number = number.removesuffix(".0")
        texts.append(f"{number} {name}".strip() if with_unit else number)
    return texts[0] if len(set(texts)) == 1 else "/".join(texts)


def _against(row: SweepRow) -> str:
    if not row.known:
        return "none found"
    best = row.known[0]
    change = row.throughput / best.throughput - 1
    return f"{best.title}: " + ("a tie" if abs(change) < 5e-5 else f"weft {change:+.2%}")
