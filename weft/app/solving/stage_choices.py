"""The best schedule for placements with alternatives: stages that keep, recompute or offload, whole or split.

First the placements whose stages are all alike, as without choices; then those with alternatives, least bound first, if
they may improve on the best schedule so far. The proven bound covers everything listed: all cuts and placements whose
stages are alike, and every assignment of the placements with alternatives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from weft.app.lib.case import Case
from weft.app.lib.coverage import cut_of_details
from weft.app.lib.options import SearchOptions
from weft.app.lib.placements import OpenPlacement
from weft.app.lib.verdicts import Searched, choice, searched, told_rows
from weft.solver.portfolio import Candidate, Portfolio
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.solver.step.report import Progress

#: Solves a case without alternatives.
Plain: TypeAlias = Callable[..., Schedule]
#: The share of the time for placements whose stages are all alike.
_ALIKE = 0.3
#: Number of placements with alternatives that are searched; for the others the bound is reported.
_MOST = 3


def solve_open(case: Case, options: SearchOptions, on_progress: Callable[[Progress], None], plain: Plain) -> Schedule:
    """The best schedule over ``case``, which has placements with alternatives; ``plain`` solves a case without.

    Raises :class:`~weft.solver.feasibility.infeasible.Infeasible` if nothing fits, its subclass ``NoneFound`` if that
    is undecided.
    """
    search = _StageChoices(case, options, on_progress)
    if search.alike is not None:
        search.take(search.alike, plain, replace(case, open=()), options.limited(_ALIKE))
    queue = sorted(search.open, key=lambda entry: (entry.bound, entry.of.problem.assignment_count))[:_MOST]
    for place, entry in enumerate(queue):
        if search.interrupted or (search.leader is not None and options.left <= 1e-3):
            break
        if entry.bound < search.best:
            search.look_at(entry, len(queue) - place)
    return search.result()


class _StageChoices(Portfolio[Any]):
    """Placements with alternatives, ``open``, and those without together, ``alike``, searched one after the other."""

    def __init__(self, case: Case, options: SearchOptions, on_progress: Callable[[Progress], None]) -> None:
        super().__init__(options.budget(), options.objective, on_progress)
        self.case = case
        self.options = options
        self.alike: Candidate[None] | None = Candidate(None) if case.placements else None
        self.open = [Candidate(placement, placement.least(options.objective)) for placement in case.open]
        self.entries = [*self.open] if self.alike is None else [self.alike, *self.open]

    def look_at(self, entry: Candidate[OpenPlacement], left: int) -> None:
        """Search a placement with alternatives, of which ``left`` remain: for its part of the remaining time, or of all
        the effort."""
        from weft.solver.choices.solve import solve_run

        share = 1 / left if self.options.effort is None else (
            1 - (0.0 if self.alike is None else _ALIKE)) / min(_MOST, len(self.open))
        found = self.take(entry, solve_run, entry.of.problem, entry.of.run, objective=self.objective,
                          **self.options.limited(share).limits)
        if found is not None and found.value <= self.best * (1 + RELATIVE_TOLERANCE):
            self.leader = entry  # among equal ones the schedule with the costs of options

    def labelled(self, candidate: Candidate[OpenPlacement | None], schedule: Schedule) -> Schedule:
        return schedule if candidate.of is None else candidate.of.label(schedule)

    def result(self) -> Schedule:
        """The best schedule, with the bound proven over all placements."""
        if self.leader is None or self.leader.found is None:
            raise self.nothing(self.case.name)
        best = self.leader.found
        rows = [*self._alike_rows(), *(searched(entry, chosen=entry is self.leader) for entry in self.open)]
        return best.with_solver(
            placements=len(rows), covered=self.case.coverage.text(), bound_over_placements=self.bound,
            **choice(rows, self.case.refused, best.makespan, self.case.least(self.objective)),
            history=self.history.to_json(), **({"interrupted": True} if self.interrupted else {}))

    def _alike_rows(self) -> list[Searched]:
        """The report on the placements whose stages are alike."""
        if self.alike is None:
            return []
        if self.alike.found is not None:
            return told_rows(self.alike.found, self.case.placements[0], chosen=self.alike is self.leader)
        refusal = str(self.alike.refusal) if self.alike.ruled_out else ""
        return [Searched(placement.title, 0.0, None, False, refusal,
                         cut_of_details(placement.details)) for placement in self.case.placements]
