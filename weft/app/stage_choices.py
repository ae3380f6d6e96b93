"""The best schedule where placements have alternatives: stages that keep, recompute or offload, whole or split.

First the placements whose stages are all alike, as without choices; then those with alternatives, the least bound
first, as far as they may be better than the best schedule so far. What is proven is a bound on all that was listed:
all cuts and placements whose stages are alike, and every assignment of the placements with alternatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from weft.app.lib.case import Case
from weft.app.lib.coverage import cut_of_details
from weft.app.lib.options import SearchOptions
from weft.app.lib.placements import OpenPlacement
from weft.app.lib.verdicts import Searched, choice
from weft.solver.control.history import History
from weft.solver.feasibility.infeasible import Infeasible, NoneFound
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.solver.step.report import Progress

__all__ = ["solve_open"]

#: What solves a case without alternatives.
Plain: TypeAlias = Callable[[Case, SearchOptions, Callable[[Progress], None]], Schedule]
#: The share of the time for placements whose stages are all alike.
_ALIKE = 0.3
#: So many placements with alternatives are searched; of the others their bound is told.
_MOST = 3


def solve_open(case: Case, options: SearchOptions, on_progress: Callable[[Progress], None], plain: Plain) -> Schedule:
    """The best schedule over ``case``, which has placements with alternatives; ``plain`` solves one that has none.

    Raises :class:`~weft.solver.feasibility.infeasible.Infeasible` where nothing fits, its subclass ``NoneFound`` where
    that is open.
    """
    search = _StageChoiceSearch(case, options, on_progress)
    if case.placements:
        search.look_at_alike(plain)
    queue = search.queue
    for place, number in enumerate(queue):
        if search.interrupted or (search.best is not None and options.left <= 1e-3):
            break
        if search.bounds[number] < search.value:
            search.look_at(number, search.share(len(queue) - place))
    return search.result()


class _StageChoiceSearch:
    """Placements looked at one after the other, and what is known of each so far.

    ``bounds``: of each placement with alternatives, in the order of the case. ``alike``: the answer for those without,
    ``alike_bound`` what none of them is below.
    """

    def __init__(self, case: Case, options: SearchOptions, on_progress: Callable[[Progress], None]) -> None:
        self.case = case
        self.options = options
        self.on_progress = on_progress
        self.clock = options.budget()
        self.history = History()
        self.best: Schedule | None = None
        self.bounds = [placement.least(options.objective) for placement in case.open]
        self.found: dict[int, Schedule] = {}
        self.refusals: dict[int, Infeasible] = {}
        self.alike: Schedule | None = None
        self.alike_bound = math.inf
        self.alike_refusal: Infeasible | None = None
        self.interrupted = False

    @property
    def queue(self) -> list[int]:
        """The placements with alternatives that are searched: those of the least work, of equal ones with the fewest
        assignments first."""
        def rank(number: int) -> tuple[float, int]:
            return self.bounds[number], self.case.open[number].problem.assignment_count

        return sorted(range(len(self.bounds)), key=rank)[:_MOST]

    @property
    def value(self) -> float:
        """What the best schedule so far comes to."""
        return math.inf if self.best is None else self.best.value

    @property
    def bound(self) -> float:
        """What no schedule of any placement is below."""
        return min(self.value, self.alike_bound, *self.bounds)

    def share(self, left: int) -> float:
        """What the next of so many placements may have: of the time left, or of all the effort."""
        if self.options.effort is None:
            return 1 / left
        return (1 - (_ALIKE if self.case.placements else 0.0)) / min(_MOST, len(self.bounds))

    def look_at_alike(self, plain: Plain) -> None:
        """Placements whose stages are all alike."""
        try:
            found = plain(replace(self.case, open=()), self.options.limited(_ALIKE), self._heard(None))
        except Infeasible as refusal:
            self.alike_refusal = refusal
            self.alike_bound = 0.0 if isinstance(refusal, NoneFound) else math.inf
            return
        self.alike = found
        self.alike_bound = min(found.value, float(found.solver.get("bound_over_placements", found.value_bound)))
        self._take(found)

    def look_at(self, number: int, share: float) -> None:
        """A placement with alternatives, for ``share`` of what is left."""
        from weft.solver.choices.solve import solve_wide

        placement, limits = self.case.open[number], self.options.limited(share)
        try:
            found = solve_wide(placement.problem, placement.run, objective=self.options.objective,
                               on_progress=self._heard(placement), time_limit=limits.left, effort=limits.effort,
                               seed=limits.seed, workers=limits.workers)
        except Infeasible as refusal:
            self.refusals[number] = refusal
            if not isinstance(refusal, NoneFound):
                self.bounds[number] = math.inf
            return
        self.found[number] = placement.label(found)
        self.bounds[number] = max(self.bounds[number], found.value_bound)
        self._take(self.found[number])

    def result(self) -> Schedule:
        """The best schedule, with what is proven over all placements."""
        if self.best is None:
            refusals = [*self.refusals.values(), *([self.alike_refusal] if self.alike_refusal is not None else [])]
            raise next((refusal for refusal in refusals if isinstance(refusal, NoneFound)), refusals[0])
        rows = [*self._alike_rows(), *(
            Searched(placement.title, self.bounds[number] if math.isfinite(self.bounds[number]) else self.value,
                     self._makespan(number), self.found.get(number) is self.best,
                     str(self.refusals.get(number, "")), cut_of_details(placement.details))
            for number, placement in enumerate(self.case.open))]
        least = self.case.least_period
        return self.best.with_solver(
            placements=len(rows), covered=self.case.coverage.text(), bound_over_placements=self.bound,
            **choice(rows, self.case.refused, self.best.makespan,
                     None if least is None else least * (1 if self.options.objective == "rate" else
                                                         self.case.micro_batches)),
            history=self.history.to_json(), **({"interrupted": True} if self.interrupted else {}))

    def _alike_rows(self) -> list[Searched]:
        """What is told of the placements whose stages are alike."""
        if self.alike is None:
            return [Searched(placement.title, 0.0, None, False, str(self.alike_refusal or ""),
                             cut_of_details(placement.details)) for placement in self.case.placements]
        told = self.alike.solver.get("alternatives")
        if told is None:
            return [Searched(self.case.placements[0].title, self.alike.value_bound, self.alike.makespan,
                             self.alike is self.best, "", cut_of_details(self.case.placements[0].details))]
        return [Searched(row["placement"], row["bound"], row["makespan"],
                         self.alike is self.best and row["verdict"] == "chosen", row.get("reason", ""),
                         tuple(row["cut"])) for row in told if row["verdict"] != "none"]

    def _makespan(self, number: int) -> float | None:
        return self.found[number].makespan if number in self.found else None

    def _take(self, found: Schedule) -> None:
        """``found``, where it is no worse than the best: of equal ones, that which says what options cost."""
        if found.value <= self.value * (1 + RELATIVE_TOLERANCE):
            self.best = found
        self.interrupted |= bool(found.solver.get("interrupted"))
        self.history.record(self.clock.elapsed, self.value, self.bound)

    def _heard(self, placement: OpenPlacement | None) -> Callable[[Progress], None]:
        """A listener that hears of nothing worse than the best so far, and of no bound that is not one on all."""
        def heard(progress: Progress) -> None:
            if progress.best.value > self.value:
                return
            best = progress.best if placement is None else placement.label(progress.best)
            self.on_progress(replace(progress, best=best.with_value_bound(min(self.bound, best.value_bound))))

        return heard
