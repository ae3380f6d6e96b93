"""The work of one point of a sweep: what goes to a worker and what comes back. Both can be pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.app.compare import known_schedules
from weft.app.lib.case import Case
from weft.app.lib.options import SearchOptions
from weft.app.solve import solve_case
from weft.solver.judge.validate import violations
from weft.solver.schedule import Schedule
from weft.solver.step.search import Infeasible

__all__ = ["Solved", "solve_point"]

#: What weft's own search takes of a point's time; known schedules have the rest.
_OWN_SHARE = 0.8


@dataclass(frozen=True)
class Solved:
    """weft's schedule of a case, and those known schedules that fit, by name."""

    weft: Schedule
    known: Mapping[str, Schedule] = field(default_factory=dict)


def solve_point(case: Case, options: SearchOptions, seconds_used: float = 0.0) -> Solved | str:
    """Solve ``case``; a text says why no schedule fits. Runs on any worker that has weft, from now on: making the case
    has taken ``seconds_used`` of the time.

    Raises ``KeyboardInterrupt`` where Ctrl-C reached the search: a result cut short is none of this point.
    """
    options = options.restarted(seconds_used)
    try:
        own = solve_case(case, options.shortened(_OWN_SHARE))
    except Infeasible as refusal:
        return str(refusal)
    if own.solver.get("interrupted"):
        raise KeyboardInterrupt
    known, _ = known_schedules(case, options.budget())
    return Solved(own, {name: schedule for name, schedule in known.items() if not violations(schedule, limit=1)})
