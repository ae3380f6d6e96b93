"""The search over all placements of a case: each runs in slices of one budget, and the best schedule wins."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.app.lib.case import Case, CasePlacement
from weft.app.lib.options import SearchOptions, forewarn
from weft.app.lib.verdicts import choice, searched
from weft.app.tools.elsewhere import elsewhere
from weft.solver.cpsat.budget import Budget
from weft.solver.judge.validate import validate
from weft.solver.portfolio import Candidate, Portfolio
from weft.solver.schedule import Schedule
from weft.solver.step.search import Infeasible, Progress
from weft.text.counts import assignment_title

if TYPE_CHECKING:
    from weft.app.cuts.search import CutDecision, CutSearch
    from weft.app.lib.wide import WideCase
    from weft.solver.orders.climb import Climb

#: Seconds of a placement's first slice of time; each later one is twice as long.
_FIRST_SLICE = 1.0
#: Number of cuts, the best ones, searched side by side in one round.
_ACTIVE = 1
#: Number of cuts of each space listed before a good schedule exists, which rules most of them out.
_FEW = 40_000
#: Slices per round for the cuts with the least bounds, and for each of them that is searched.
_LOWEST, _ASKED = 0.5, 0.1
#: Slices per round for the climb over cuts, and their limit as a share of the remaining time.
_CLIMB, _CLIMB_SHARE = 4.0, 0.5


def for_objective(case: Case, objective: str) -> Case:
    """``case`` with the candidates for ``objective``: the bounds on all cuts are of makespans, so for other objectives
    only the listed placements are searched; and a step of the whole model on every GPU has no steady state of
    micro-batches."""
    if objective == "makespan" or not (case.spaces or case.whole_model):
        return case
    if not case.placements and objective != "span":
        raise Infeasible(f"{case.name}: only the whole model on every GPU is left, whose micro-batches are whole "
                         f"steps: it is searched for makespan and span, not for {objective}")
    return replace(case, spaces=(), whole_model=case.whole_model if objective == "span" else ())


def solve_case(
    case: Case,
    options: SearchOptions,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Schedule:
    """The best schedule over all placements of ``case``.

    The placements get slices of time one after another, those with the smallest lower bounds first (in the first
    round, hard ones last), and slices double each round. A placement whose lower bound is not below the best makespan
    found anywhere is skipped. If the case has all cuts of its layers, those that may be best are searched as well.
    """
    if case.wide is not None:
        return _solve_wide(case.wide, options, on_progress)
    if case.reorder:
        from weft.app.solving.reorder import best_order

        return best_order(case, options, on_progress)
    case = for_objective(case, options.objective)
    if case.open:
        from weft.app.solving.stage_choices import solve_open

        return solve_open(case, options, on_progress, solve_case)
    budget = options.budget()
    tournament = _Tournament(case, budget, on_progress, options.objective)
    with budget.kept(lambda: tournament.leader is not None):
        tournament.run()
    return tournament.result()


def _solve_wide(case: WideCase, options: SearchOptions, on_progress: Callable[[Progress], None]) -> Schedule:
    """The best schedule over all assignments of a problem with choices, jobs or classes."""
    from weft.solver.choices.solve import solve_run

    if case.reorder or case.any_class:
        return _judged(_solve_sequence(case, options, on_progress), case)
    return _judged(solve_run(case.problem, case.run, objective=options.objective, on_progress=on_progress,
                              **options.limits), case)


def _judged(found: Schedule, case: WideCase) -> Schedule:
    """``found``, checked to be a valid schedule of the case's problem, with the options taken as its placement."""
    validate(found, whole=case.problem)
    return found.with_solver(placement=assignment_title(found.choices)) if found.choices else found


def _solve_sequence(case: WideCase, options: SearchOptions, on_progress: Callable[[Progress], None]) -> Schedule:
    """The best schedule over all orders of the micro-batches, or over all their possible classes."""
    from weft.solver.choices.sequences.solve import solve_sequence

    return solve_sequence(case.problem, case.run, any_class=case.any_class, objective=options.objective,
                          on_progress=on_progress, **options.limits)


class _Tournament(Portfolio[CasePlacement]):
    """The placements' searches, each in slices of one budget."""

    def __init__(self, case: Case, budget: Budget, on_progress: Callable[[Progress], None],
                 objective: str = "makespan") -> None:
        super().__init__(budget, objective, on_progress)
        self.case = case
        self.entries = [self._entry(placement) for placement in (*case.placements, *case.whole_model)]
        self.cuts = _cut_search(case, budget)
        self.climb: Climb[CutDecision] | None = None
        self.cut_of: dict[Candidate[CasePlacement],
                          CutDecision] = {}  # the cut of the layers of an entry, if it is one

    def _entry(self, placement: CasePlacement, start: Schedule | None = None) -> Candidate[CasePlacement]:
        """``start``: of a cut found in addition to the listed placements."""
        count = self.case.micro_batches // placement.replicas
        return Candidate(placement, placement.least(self.case.micro_batches, self.objective), placement.problem, count,
                         start or placement.start, placement.replicas if self.objective == "rate" else 1)

    @property
    def beside(self) -> float:
        return math.inf if self.cuts is None else self.cuts.bound

    def labelled(self, candidate: Candidate[CasePlacement], schedule: Schedule) -> Schedule:
        return candidate.of.label(schedule)

    @property
    def _done(self) -> tuple[float, int, int]:
        """A value that changes with every round that makes progress."""
        return self.budget.deterministic_used, len(self.entries), sum(entry.taken for entry in self.entries)

    def run(self) -> None:
        """Known schedules on all candidates that may be best, then the cuts, then slices of the best ones and closer
        bounds on the cuts with the least bounds, round after round."""
        for entry in sorted(self.entries, key=_rank):
            if self.budget.left <= 0 and self.leader is not None:
                return
            self._try(entry)
        self._look_at_cuts()
        length = _FIRST_SLICE
        while not self.budget.spent and (self.running or (self.cuts is not None and self.cuts.left)):
            before, settled = self._done, self.leader is not None and self.leader.proven
            if settled:  # on its placement: then bounds of cuts come first
                self._lowest(8 * length)
            self._climb(length)
            self.running = [entry for entry in self.running if entry is self.leader or entry.bound < self.best]
            self.round(self._active(first=length == _FIRST_SLICE), length)
            if not settled:
                self._lowest(length if self.running else 8 * length)
            if self._done == before:
                return  # the rest cannot be listed, or is proven
            length *= 2

    def _try(self, entry: Candidate[CasePlacement]) -> None:
        """Known schedules first: none may be better than the answer."""
        if entry.bound >= self.best:
            return
        try:
            if entry.of.rounds is not None:
                from weft.solver.baselines.on_rounds import best_on_rounds

                entry.start = best_on_rounds(entry.of.rounds)
            self.begin(entry)
        except Exception as fault:  # takes nothing away from the others' schedules
            entry.fault = fault
            return
        assert entry.search is not None
        if self.leader is None and entry.search.is_large:
            forewarn(entry.search.operations, self.budget.elapsed, self.budget.seconds)
        if entry.bound < self.best and self.go_on(entry, 0.0):
            self.running.append(entry)

    def _look_at_cuts(self) -> None:
        if self.leader is None or self.cuts is None or self.budget.spent:
            return
        from weft.app.cuts.tries import tried
        from weft.solver.orders.climb import Climb

        self.climb = Climb(self.budget)
        self.cuts.open(self.best, _FEW)
        for entry in self.entries:
            if (cut := self.cuts.cut_of(entry.of)) is not None:
                self._is_cut(entry, cut)
        for found in tried(self.cuts, self.climb, beside=any(entry not in self.cut_of for entry in self.running)):
            self._add(found.decision, found.schedule)
        self.cuts.narrow(self.best)
        self.cuts.open(self.best)

    def _add(self, cut: CutDecision, start: Schedule | None = None) -> None:
        """Search another cut, which is then removed from the cut search."""
        entry = self._entry(cut.placement, start)
        self.entries.append(entry)  # first: whatever breaks off in between, its bound counts
        self._is_cut(entry, cut.of.taken(cut))
        self._try(entry)

    def _is_cut(self, entry: Candidate[CasePlacement], cut: CutDecision) -> None:
        """``entry`` is this ``cut``, whose known bound remains valid."""
        self.cut_of[entry] = cut
        entry.least = max(entry.least, cut.bound)

    def _active(self, *, first: bool) -> list[Candidate[CasePlacement]]:
        """The entries with a slice in this round: the best cuts, and all placements that are not cuts."""
        of_cuts = sorted((entry for entry in self.running if entry in self.cut_of and not self.is_settled(entry)),
                         key=lambda entry: entry.value)
        others = [entry for entry in self.running if entry not in self.cut_of]
        return sorted([*of_cuts[:_ACTIVE], *others], key=lambda entry: _rank(entry, easy_first=first))

    def _climb(self, length: float) -> None:
        """Continue the climb from the best cuts so far; a cut that is better than all is searched next."""
        if self.climb is None:
            return
        from weft.solver.orders.climb import Decided

        for entry, cut in self.cut_of.items():
            if entry.best is not None:
                self.climb.keep(Decided(cut, entry.best))
        with self.budget.limited(_CLIMB_SHARE):
            self.climb.run(self.budget.slice(_CLIMB * length * (1 if self.running else 8)))
        if self.climb.kept and self.climb.kept[0].makespan < self.best:
            self._add(self.climb.kept[0].decision, self.climb.kept[0].schedule)

    def improved(self, candidate: Candidate[CasePlacement]) -> None:
        """If another cut is better for the order found, continue there."""
        if self.cuts is None or candidate not in self.cut_of or candidate.best is None:
            return
        with self.budget.limited():
            other = self.cuts.carried(self.cut_of[candidate], candidate.best.orders)
            if other is not None and other.makespan < candidate.value:
                self._add(other.decision, other.schedule)

    def _lowest(self, length: float) -> None:
        """Tighten the least bounds: of searched cuts, longer in each round, and of others. Cuts not ruled out are
        searched briefly."""
        if self.cuts is None or self.leader is None:
            return
        self.cuts.narrow(self.best)
        time = self.budget.slice(_LOWEST * length)
        with self.budget.limited():
            for entry in sorted(self.cut_of, key=lambda entry: entry.bound):
                if time.spent or entry.bound > self.cuts.bound or entry.bound >= self.best:
                    break
                cut, schedule = self.cuts.look(self.cut_of[entry], self.best, _ASKED * length)
                self._is_cut(entry, cut)
                if schedule is not None and entry.search is not None:
                    entry.search.incumbent.offer(schedule.orders, "weft")
            found = self.cuts.lowest(self.best, time)
            if found is not None:
                self._add(*found)

    def result(self) -> Schedule:
        leader = self.leader
        faults = [(entry, entry.fault) for entry in self.entries if entry.fault is not None]
        if leader is None or leader.search is None:
            for entry in self.entries:
                if entry.search is not None and not faults:
                    rounds = entry.of.rounds
                    entry.search.require_value("micro-batches" if rounds is None else rounds.counted)
            raise self.nothing(self.case.name)
        best = leader.search.result()
        covered = self.case.coverage.text()
        if faults:
            best = best.with_solver(stopped="; ".join([*leader.search.report.stopped, *(
                f"{entry.of.title}: {type(fault).__name__}: {fault}" for entry, fault in faults)]))
        labelled = leader.of.label(best)
        near = elsewhere(labelled, (entry for entry in self.entries if entry is not leader))
        if len(self.entries) == 1 and not self.case.spaces:
            return labelled.with_solver(**({"covered": covered} if covered else {}), **near)
        self.history.record(self.budget.elapsed, self.best, self.bound)
        return labelled.with_solver(
            **near, placements=len(self.entries), covered=covered, bound_over_placements=self.bound,
            **choice([searched(entry, chosen=entry is leader) for entry in self.entries], self.case.refused,
                     leader.value, self.case.least(self.objective)),
            history=self.history.to_json())


def _rank(entry: Candidate[CasePlacement], *, easy_first: bool = True) -> tuple[bool, float]:
    """Smaller values are searched sooner."""
    return easy_first and entry.of.is_hard, entry.bound


def _cut_search(case: Case, budget: Budget) -> CutSearch | None:
    """The search over all cuts, if the case has them: its imports are needed only for specs."""
    if not case.spaces:
        return None
    from weft.app.cuts.search import CutSearch

    return CutSearch(case.spaces, case.micro_batches, budget)
