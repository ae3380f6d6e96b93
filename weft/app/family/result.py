"""A family of plans: the plan of each part of a training run, the costs of switches, and the alternatives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from weft.app.lib.results import SavedResult
from weft.app.lib.sources import PathLike
from weft.models.phases.plans import PhasePlan
from weft.solver.schedule import Schedule
from weft.text.tables import table_of
from weft.text.units import shown_memory, shown_time, time_text

FAMILY_FORMAT = "weft.family/1"


@dataclass(frozen=True, slots=True)
class FamilyPart:
    """Steps ``first`` to ``last - 1``, which have these ``values``. ``step_times``: seconds of a step by plan, infinite
    if it does not fit. ``plan``: the plan that runs. ``best``: seconds of a step under the best of all."""

    first: int
    last: int
    values: Mapping[str, Any]
    step_times: tuple[float, ...]
    plan: int
    best: float

    @property
    def step_time(self) -> float:
        """Seconds of a step."""
        return self.step_times[self.plan]


@dataclass(frozen=True, slots=True)
class FamilySwitch:
    """Before ``step`` plan ``after`` replaces ``before``: ``bytes`` of parameters and optimizer state move between GPUs
    in ``seconds``."""

    step: int
    before: int
    after: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Family(SavedResult):
    """The result of :func:`weft.family`; ``str()`` is the table.

    ``total``: seconds of all steps and switches. ``bound``: the same with each part's best plan and free switches; no
    sequence of these plans is shorter. ``fixed``: by plan, seconds of all steps under it alone, infinite if it does not
    fit in some part. ``every``: by part and plan the schedule, ``None`` if it does not fit.
    """

    name: str
    plans: tuple[PhasePlan, ...]
    parts: tuple[FamilyPart, ...]
    switches: tuple[FamilySwitch, ...]
    total: float
    bound: float
    fixed: tuple[float, ...]
    cached: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    every: tuple[tuple[Schedule | None, ...], ...] = field(default=(), repr=False)

    @property
    def schedules(self) -> tuple[Schedule | None, ...]:
        """By part, the schedule of its plan."""
        return tuple(row[part.plan] for row, part in zip(self.every, self.parts, strict=True))

    @property
    def best_fixed(self) -> int | None:
        """The best single plan; ``None`` if none fits everywhere."""
        best = min(range(len(self.fixed)), key=self.fixed.__getitem__)
        return None if self.fixed[best] == float("inf") else best

    def to_json(self) -> dict[str, Any]:
        """The numbers as plain data (format ``weft.family/1``)."""
        fixed = [_finite(value) for value in self.fixed]
        return {
            "format": FAMILY_FORMAT, "name": self.name, "time_unit": "s", "settings": dict(self.settings),
            "plans": [{"title": plan.title, "layers_of_stage": [list(names) for names in plan.layers],
                       "gpus_of_stage": [list(group) for group in plan.gpus], "total": total}
                      for plan, total in zip(self.plans, fixed, strict=True)],
            "parts": [{"first": part.first, "last": part.last, "values": dict(part.values), "plan": part.plan,
                       "step_time": part.step_time, "best_step_time": part.best,
                       "step_times": [_finite(time) for time in part.step_times]} for part in self.parts],
            "switches": [asdict(switch) for switch in self.switches],
            "total": self.total, "bound": self.bound, "best_fixed": self.best_fixed,
            "best_fixed_total": None if self.best_fixed is None else fixed[self.best_fixed],
        }

    def draw(self, path: PathLike, title: str | None) -> None:
        from weft.figures.results import StepTimes, draw_training

        best = self.best_fixed
        draw_training([StepTimes(part.first, part.last, part.step_time, part.best,
                                 None if best is None else part.step_times[best], self.plans[part.plan].title)
                       for part in self.parts], path, title or f"{self.name}: the time of a step while it trains")

    def table(self) -> Any:
        """The table, to be printed by rich."""
        table = table_of(f"{self.name}: {self.parts[-1].last:,} steps", (
            "from step", *self.parts[0].values, "plan", "ms a step", "best", "alone"), ("plan",), self.caption())
        best = self.best_fixed
        for part in self.parts:
            alone = "-" if best is None else _milliseconds(part.step_times[best])
            table.add_row(f"{part.first:,}", *(str(value) for value in part.values.values()),
                          self.plans[part.plan].title, _milliseconds(part.step_time), _milliseconds(part.best), alone)
        return table

    def caption(self) -> str:
        """One line a fact: switches, the total, its bound, the best single plan."""
        lines = []
        for switch in self.switches:
            lines.append(f"switch before step {switch.step:,}: {shown_memory(switch.bytes, 'B')} move in "
                         f"{shown_time(switch.seconds, 's')}, to {self.plans[switch.after].title}")
        lines.append(f"total {self.total:,.1f} s, {self.total / self.bound - 1:.2%} above {self.bound:,.1f} s, the "
                     "best of these plans in every part and no cost of switching")
        best = self.best_fixed
        if best is None:
            lines.append("no single plan fits in every part")
        else:
            lines.append(f"alone: {self.plans[best].title}, {self.fixed[best]:,.1f} s: "
                         f"the family takes {1 - self.total / self.fixed[best]:.1%} less")
        return "\n".join(lines)


def _finite(value: float) -> float | None:
    return None if value == float("inf") else value


def _milliseconds(seconds: float) -> str:
    return "does not fit" if seconds == float("inf") else time_text(seconds, "s")[0]
