"""What a comparison found: a row of figures a schedule, weft's own the last, and what is to be said of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from weft.app.lib.coverage import others
from weft.app.lib.decided_memory import plan_text
from weft.app.lib.placements import SEARCHES
from weft.app.lib.results import Tabular
from weft.app.lib.verdicts import grid_lines
from weft.solver.baselines import BASELINES
from weft.solver.judge.validate import violations
from weft.solver.problem import Number
from weft.solver.schedule import Schedule
from weft.text.counts import choices_text, micro_batches_text
from weft.text.tables import table_of
from weft.text.units import each_text, memory_text, shown_time, time_text

if TYPE_CHECKING:
    from weft.app.lib.case import Case


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One schedule's figures. Times are in the problem's unit, memory in its unit; bubbles are shares, 0 to 1.

    ``peak`` is the highest memory use of each device, static memory included where it is known. ``fits`` says whether
    every device has that much. ``bound`` and ``gap`` are those of weft's own row only. ``span`` is given where that is
    compared, and ``bound`` and ``gap`` are then of it.
    """

    name: str
    title: str
    placement: str
    makespan: float
    bubble_steady: float | None
    bubble_step: float
    bubble_span: float
    peak: tuple[Number, ...]
    fits: bool
    bound: float | None = None
    gap: float | None = None
    bound_over_placements: float | None = None
    span: float | None = None

    @property
    def value(self) -> float:
        """How often steps can follow each other: every span where that is compared, else every makespan."""
        return self.makespan if self.span is None else self.span

    def to_json(self) -> dict[str, Any]:
        """The figures as plain data; the span where it is compared."""
        return {key: value for key, value in asdict(self).items() if key != "span" or value is not None}


@dataclass(frozen=True)
class Comparison(Tabular):
    """What :func:`weft.compare` found. ``schedules`` holds every row's schedule, by the row's name; ``left_out`` says
    why a known schedule is missing. ``with_adam``: for a spec with AdamA, weft's schedule for the same with Adam, or
    why nothing fits then. ``str()`` is the table."""

    case: Case
    rows: tuple[ComparisonRow, ...]
    schedules: Mapping[str, Schedule]
    left_out: Mapping[str, str]
    with_adam: Schedule | str | None = None

    @property
    def weft(self) -> Schedule:
        """weft's own schedule."""
        return self.schedules["weft"]

    @property
    def best_fixed(self) -> str | None:
        """The name of the fastest schedule that fits (or of all, if none does), searches left out."""
        published = [row for row in self.rows if row.name != "weft" and row.name not in SEARCHES]
        return min(published, key=lambda row: (not row.fits, row.value)).name if published else None

    def to_json(self) -> dict[str, Any]:
        """The numbers as plain data."""
        problem = self.weft.problem
        adam = self.with_adam
        return {"name": self.case.name, "micro_batches": self.case.micro_batches, "time_unit": problem.time_unit,
                "memory_unit": problem.memory_unit, "placements": self.case.coverage.to_json(),
                "rows": [row.to_json() for row in self.rows],
                "left_out": dict(self.left_out),
                **({} if adam is None else {"with_adam": {"infeasible": adam} if isinstance(adam, str) else
                                            row_of("weft", adam).to_json()})}

    def table(self) -> Any:
        """The table, to be printed by rich."""
        problem = self.weft.problem
        time_unit, memory_unit = time_text(1.0, problem.time_unit)[1], memory_text(1, problem.memory_unit)[1]
        grid = self.weft.solver.get("grid", {})
        gpus = grid.get("gpus") or sum(device.lane_of is None for device in problem.devices)
        step = "ms per step" if time_unit == "ms" else f"makespan, {time_unit}"
        spans = ["span"] if any(row.span is not None for row in self.rows) else []
        texts = ("schedule", "placement")
        steady = ["bubble: steady"] if any(row.bubble_steady is not None for row in self.rows) else []
        table = table_of(f"{self.case.name}: {micro_batches_text(self.weft)}, {gpus} GPUs", (
            *texts, step, *spans, *steady, "step" if steady else "bubble: step", "span", f"peak {memory_unit} per GPU",
            "fits"), texts, self.caption())
        for row in self.rows:
            devices = self.schedules[row.name].problem.devices  # lanes beside them differ from row to row
            table.add_row(
                row.title, row.placement, time_text(row.makespan, problem.time_unit)[0],
                *(time_text(row.value, problem.time_unit)[0] for _ in spans),
                *("-" if row.bubble_steady is None else f"{row.bubble_steady:.1%}" for _ in steady),
                f"{row.bubble_step:.1%}", f"{row.bubble_span:.1%}",
                each_text([amount for amount, device in zip(row.peak, devices, strict=True) if device.lane_of is None],
                          problem.memory_unit),
                "yes" if row.fits else "no", style="bold" if row.name == "weft" else None)
        return table

    def caption(self) -> str:
        """One line a fact: weft's bound and gap, how it stands to the best known schedule, what is left out."""
        own, over = next(row for row in self.rows if row.name == "weft"), self.case.coverage.text()
        unit = self.weft.problem.time_unit
        bound = shown_time(own.bound or 0.0, unit)
        of = "lower bound" if own.span is None else "lower bound on the span"
        proof = "proven optimal" if own.gap == 0 else f"gap at most {own.gap:.2%}"
        lines = [*grid_lines(self.weft), f"weft: {of} {bound}, {proof}" + (" for this placement" if over else "")]
        if own.bound_over_placements is not None:
            proof = ("proven optimal" if own.value <= own.bound_over_placements * (1 + 1e-9) else
                     "lower bound " + shown_time(own.bound_over_placements, unit))
            beyond = self.weft.solver.get("bound_over_any_placement", 0.0) >= own.value * (1 - 1e-9)
            lines.append(f"{proof} over {over}; " + ("no other placement is faster" if beyond else others(over)))
        elif over:
            lines.append(f"that is over {over}; {others(over)}")
        if self.weft.choices:
            lines.append(f"weft: {choices_text(self.weft)}")
        if decided := plan_text(self.weft):
            lines.append(f"weft: {decided}")
        published = next((row for row in self.rows if row.name == self.best_fixed), None)
        if published is not None and not published.fits:
            lines.append("no fixed schedule fits")
            published = None
        rivals = [] if published is None else [(f"the best fixed schedule that fits ({published.title})", published)]
        rivals += [(SEARCHES[row.name], row) for row in self.rows if row.name in SEARCHES and row.fits]
        for what, rival in rivals:
            change = own.value / rival.value - 1
            lines.append(f"against {what}: " + ("a tie" if abs(change) < 5e-5 else f"{change:+.1%} time per step"))
        if isinstance(self.with_adam, str):
            lines.append(f"with Adam in place of AdamA nothing fits: {self.with_adam}")
        elif self.with_adam is not None:
            change, step = own.value / self.with_adam.value - 1, time_text(self.with_adam.value, unit)
            lines.append(f"against weft with Adam in place of AdamA ({' '.join(step)}): "
                         + ("a tie" if abs(change) < 5e-5 else f"{change:+.1%} time per step"))
        alike: dict[str, list[str]] = {}
        for name, reason in self.left_out.items():
            alike.setdefault(reason, []).append(BASELINES[name].title)
        lines += [f"{', '.join(titles)} left out: {reason}" for reason, titles in alike.items()]
        return "\n".join(lines)


def row_of(name: str, schedule: Schedule) -> ComparisonRow:
    """The figures of ``schedule``, the known one of that name or weft's own."""
    bubble = schedule.bubble
    own = name == "weft"
    return ComparisonRow(
        name, "weft" if own else BASELINES[name].title, str(schedule.solver.get("placement", "")), schedule.makespan,
        bubble.steady, bubble.step, bubble.span, schedule.peak_with_static, fits(schedule),
        bound=schedule.value_bound if own else None,
        gap=schedule.value_gap if own else None,
        bound_over_placements=schedule.solver.get("bound_over_placements") if own else None,
        span=schedule.value if schedule.objective == "span" else None,
    )


def fits(schedule: Schedule) -> bool:
    """Whether the judge, which has passed everything else, also passes its memory."""
    return not violations(schedule, limit=1)
