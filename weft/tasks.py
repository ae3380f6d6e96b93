"""The work of one point of a sweep: what goes to a worker and what comes back. Both can be pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from solver.schedule import Schedule
from solver.search import Infeasible
from solver.validate import violations
from weft.comparison import known_schedules
from weft.planning import Case, solve_case

__all__ = ["Limits", "Solved", "solve_point"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How long each point is searched: see :func:`weft.solve`. CP-SAT runs with one worker, points run side by side."""

    time_limit: float
    effort: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class Solved:
    """weft's schedule of a case, and those known schedules that fit, by name."""

    weft: Schedule
    known: Mapping[str, Schedule] = field(default_factory=dict)


def solve_point(case: Case, limits: Limits) -> Solved | str:
    """Solve ``case``; a text says why no schedule fits. Runs on any worker that has weft.

    Raises ``KeyboardInterrupt`` where Ctrl-C reached the search: a result cut short is none of this point.
    """
    try:
        own = solve_case(case, time_limit=limits.time_limit, effort=limits.effort, seed=limits.seed)
    except Infeasible as refusal:
        return str(refusal)
    if own.solver.get("interrupted"):
        raise KeyboardInterrupt
    known, _ = known_schedules(case)
    return Solved(own, {name: schedule for name, schedule in known.items() if not violations(schedule, limit=1)})
