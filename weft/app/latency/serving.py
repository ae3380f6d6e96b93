"""Latencies at throughputs: parsing requests and showing results.

The results of one placement during the latency search: schedules, and proven bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from weft.app.lib.case import CasePlacement
from weft.app.lib.coverage import NOTHING, Coverage, others
from weft.app.lib.results import SavedResult
from weft.app.lib.sources import PathLike
from weft.solver.latency.search import longest_chain, slowest_useful_period
from weft.solver.period.periodic import Periodic
from weft.solver.problem import Number
from weft.solver.schedule import Schedule
from weft.solver.ticks import TickProblem
from weft.solver.values import exact, is_finite_number
from weft.text.tables import table_of
from weft.text.units import memory_text, shown_time, time_text

LATENCY_FORMAT = "weft.latency/1"

#: A latency counts as proven within this share of its bound.
_PROOF_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class ServingPoint:
    """One micro-batch every ``period``, each done ``latency`` after it starts; times in the problem's unit.

    ``bound`` is a proven lower bound on the latency of every schedule on every placement considered, with one
    micro-batch per period no longer than this (or than the requested floor). ``peak`` is the highest memory use of each
    device, static memory included if known. ``schedule`` runs every block at its periodic time.
    """

    placement: str
    period: float
    latency: float
    bound: float
    peak: tuple[Number, ...]
    schedule: Schedule

    @property
    def throughput(self) -> float:
        """Micro-batches per time unit."""
        return 1 / self.period

    @property
    def gap(self) -> float:
        """The most by which the latency may exceed the least possible, as a share of the bound; 0 if proven."""
        return 0.0 if self.latency <= self.bound * (1 + _PROOF_TOLERANCE) else self.latency / self.bound - 1


@dataclass(frozen=True)
class Serving(SavedResult):
    """The result of :func:`weft.latency`; ``str()`` is the table.

    ``points`` is the front by rising period, or the one point at ``floor`` (the longest period allowed).
    ``micro_batch_size`` is samples a micro-batch (``None`` for a block problem). ``least_period`` is the shortest
    period found, ``least_period_bound`` its proven bound. ``covered`` are the placements over which bounds are proven.
    """

    name: str
    devices: int
    time_unit: str
    memory_unit: str
    micro_batch_size: int | None
    points: tuple[ServingPoint, ...]
    floor: Fraction | None
    placements: int
    least_period: float
    least_period_bound: float
    seconds: float
    seed: int
    interrupted: bool
    covered: Coverage = NOTHING

    def rate_text(self, point: ServingPoint) -> tuple[str, ...]:
        """Throughput in micro-batches and, if known, in samples per time unit."""
        sizes = (1,) if self.micro_batch_size is None else (1, self.micro_batch_size)
        return tuple(f"{size * point.throughput:.5g}" for size in sizes)

    def point_text(self, point: ServingPoint) -> str:
        """One point in a line."""
        return (f"{self.rate_text(point)[0]} micro-batches/{self.time_unit}: latency "
                f"{shown_time(point.latency, self.time_unit)}, {_proof(point)}"
                + (f"  [{point.placement}]" if point.placement else ""))

    def to_json(self) -> dict[str, Any]:
        """The numbers as plain data (format ``weft.latency/1``)."""
        size = self.micro_batch_size
        return {
            "format": LATENCY_FORMAT, "name": self.name, "devices": self.devices, "time_unit": self.time_unit,
            "memory_unit": self.memory_unit, "micro_batch_size": size, "placements": self.placements,
            "covered": self.covered.to_json(),
            "longest_period": None if self.floor is None else float(self.floor),
            "least_period": self.least_period, "least_period_bound": self.least_period_bound,
            "points": [{
                "placement": point.placement, "period": point.period, "throughput": point.throughput,
                **({} if size is None else {"samples": size * point.throughput}), "latency": point.latency,
                "latency_bound": point.bound, "gap": point.gap, "peak_memory": list(point.peak),
            } for point in self.points],
            "seconds": round(self.seconds, 3), "seed": self.seed, "interrupted": self.interrupted,
        }

    @property
    def answer(self) -> Schedule | None:
        """The schedule of the point at a floor."""
        return None if self.floor is None else self.points[0].schedule

    def draw(self, path: PathLike, title: str | None) -> None:
        if self.answer is None:
            from weft.figures.results import draw_latencies

            draw_latencies(self, path, title=title)
        else:
            from weft.app.draw import draw_schedule

            draw_schedule(self.answer, path, title=title)

    def table(self) -> Any:
        """The table, to be printed by rich."""
        time_name, memory_name = time_text(1.0, self.time_unit)[1], memory_text(1, self.memory_unit)[1]
        table = table_of(f"{self.name}: {self.devices} GPUs, one micro-batch's latency against throughput", (
            *(["placement"] if any(point.placement for point in self.points) else []),
            f"micro-batches/{self.time_unit}",
            *([] if self.micro_batch_size is None else [f"samples/{self.time_unit}"]), f"period {time_name}",
            f"latency {time_name}", f"bound {time_name}", "gap", f"peak {memory_name} per GPU"), ("placement",),
                         self.caption())
        for point in self.points:
            times = (time_text(value, self.time_unit)[0] for value in (point.period, point.latency, point.bound))
            table.add_row(
                *([point.placement] if point.placement else []), *self.rate_text(point), *times,
                "proven" if point.gap == 0 else f"{point.gap:.2%}",
                " ".join(memory_text(amount, self.memory_unit)[0] for amount in point.peak))
        return table

    def caption(self) -> str:
        """One line a fact: the scope of the bound, and the best throughput."""
        covered = self.covered.text()
        over = f", on {covered}; {others(covered)}" if covered else ""
        lines = [f"bound: over all schedules with one micro-batch per period no longer than this{over}"]
        if self.floor is not None:
            lines[0] = (f"bound: over all schedules with one micro-batch per period of at most "
                        f"{shown_time(float(self.floor), self.time_unit)}{over}")
        else:
            proven = self.least_period <= self.least_period_bound * (1 + _PROOF_TOLERANCE)
            lines.append(f"best throughput {1 / self.least_period:.5g} micro-batches/{self.time_unit}, "
                         + ("proven" if proven else f"no more than {1 / self.least_period_bound:.5g} is possible"))
        if self.interrupted:
            lines.append("interrupted: the search was not finished")
        return "\n".join(lines)


def parse_period(value: Number | str, unit: str) -> Fraction:
    """A period in the time unit ``unit``: a number, or, if the unit is seconds, text like ``80 ms``.

    Raises ``ValueError`` that says what is allowed.
    """
    if unit == "s":
        from weft.models.spec.quantities import parse_seconds

        try:
            # A Python number is in the problem's unit; text without a unit may mean another one.
            return _positive(parse_seconds(value if isinstance(value, str) else f"{value!r} s"), value)
        except ValueError as error:
            raise ValueError(f"period is {value!r}, {error}") from None
    try:
        number = float(str(value).removesuffix(unit))
    except ValueError:
        raise ValueError(f"period is {value!r}, it must be a number of {unit}, like 80") from None
    return _positive(number, value)


def parse_throughput(value: Number | str, unit: str) -> Fraction:
    """Micro-batches per ``unit`` of time: a number, or text like ``12.5/s``.

    Raises ``ValueError`` that says what is allowed.
    """
    number, _, per = str(value).partition("/")
    scale = {"s": Fraction(1), "ms": Fraction(1000), "us": Fraction(10**6), "min": Fraction(1, 60)}
    scales = scale if unit == "s" else {unit: Fraction(1)}
    try:
        amount = float(number)
    except ValueError:
        amount = 0.0
    if not is_finite_number(amount) or amount <= 0 or (per.strip() or unit) not in scales:
        raise ValueError(f"throughput is {value!r}, it must be micro-batches per time, greater than 0, "
                         f"like 12.5/{unit}")
    return exact(amount) * scales[per.strip() or unit]


def _positive(number: float, value: Number | str) -> Fraction:
    if not is_finite_number(number) or number <= 0:
        raise ValueError(f"period is {value!r}, it must be finite and greater than 0")
    return exact(number)


def _proof(point: ServingPoint) -> str:
    return "proven the least" if point.gap == 0 else f"gap at most {point.gap:.2%}"


@dataclass
class PlacedRates:
    """The results of one placement. Times are in ticks of its instance.

    ``bounds`` are ``(period, latency)``: for periods of at most the first, latencies of at least the second.
    """

    placement: CasePlacement
    instance: TickProblem
    known: list[Periodic]
    least_period: Fraction
    bounds: list[tuple[Fraction, Fraction]] = field(default_factory=list)

    @property
    def fastest(self) -> Periodic:
        """The known schedule of the shortest period."""
        return min(self.known, key=lambda found: (found.period, found.latency))

    def limit(self, period: Fraction) -> Fraction:
        """A period in the problem's unit as ticks."""
        return period / self.instance.tick

    def best_within(self, period: Fraction) -> Periodic | None:
        """The known schedule of least latency with a period of at most ``period`` (the problem's unit)."""
        fast = [found for found in self.known if found.period <= self.limit(period)]
        return min(fast, key=lambda found: (found.latency, found.period), default=None)

    def bound_within(self, period: Fraction) -> Fraction | None:
        """A proven bound on the latency at a period of at most ``period``, both in the problem's unit; None if no
        schedule is so fast."""
        instance, limit = self.instance, self.limit(period)
        if self.least_period > instance.loosened(limit):
            return None
        path = longest_chain(instance, instance.loosened(min(limit, Fraction(slowest_useful_period(instance)))))
        if path is None:
            return None
        best = max([Fraction(path), *(bound for at, bound in self.bounds if at >= limit)])
        return instance.latency_bound(best, Fraction(instance.heaviest_load) - instance.loss)
