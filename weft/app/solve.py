"""The search over all placements of a case: each runs for slices of one budget, and the best schedule wins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from weft.app.lib.case import Case, Placement
from weft.app.lib.coverage import cut_of_details
from weft.app.lib.notices import forewarn
from weft.app.lib.options import SearchOptions
from weft.app.lib.verdicts import Searched, choice
from weft.app.lib.wide import WideCase
from weft.solver.bounds.load import load_bound, work_alone
from weft.solver.control.history import History
from weft.solver.control.stopping import breakable
from weft.solver.cpsat.budget import Budget
from weft.solver.judge.validate import InvalidSchedule, violations
from weft.solver.schedule import Schedule
from weft.solver.step.search import Infeasible, NoneFound, Progress, Search
from weft.text.options import assignment_title

if TYPE_CHECKING:
    from weft.app.cuts.search import Cut, CutSearch
    from weft.solver.orders.climb import Climb

__all__ = ["for_objective", "solve_case"]

#: Seconds of a placement's first slice of time; each later one is twice as long.
_FIRST_SLICE = 1.0
#: Of all cuts so many are searched beside each other in one round, the best ones.
_ACTIVE = 1
#: Cuts of each space that are listed before there is a good schedule, which rules most of them out.
_FEW = 40_000
#: What each round spends on the cuts with the least bounds, as a share of a slice.
_LOWEST = 0.5
#: What each round spends on the climb over cuts, in slices.
_CLIMB = 4.0


def for_objective(case: Case, objective: str) -> Case:
    """``case`` with what is searched for ``objective``: the bounds on all cuts are of makespans, so for another one it
    is the placements listed; and a step of the whole model on every GPU has no steady state of micro-batches."""
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
    found anywhere is passed over. Where the case has all cuts of its layers, those that may be best are searched beside
    them.
    """
    if case.wide is not None:
        return _solve_wide(case.wide, options, on_progress)
    if case.reorder:
        from weft.app.reorder import best_order

        return best_order(case, options, on_progress)
    case = for_objective(case, options.objective)
    if case.open:
        from weft.app.stage_choices import solve_open

        return solve_open(case, options, on_progress, solve_case)
    budget = options.budget()
    tournament = _Tournament(case, budget, on_progress, options.objective)
    try:
        with budget.limited(), breakable():
            tournament.run()
    except KeyboardInterrupt:
        budget.interrupted = True
        if tournament.winner is None:
            raise
    return tournament.result()


def _solve_wide(case: WideCase, options: SearchOptions, on_progress: Callable[[Progress], None]) -> Schedule:
    """The best schedule over all assignments of a problem with choices, jobs or classes."""
    from weft.solver.choices.solve import solve_wide

    if case.reorder or case.any_class:
        return _judged(_solve_sequence(case, options, on_progress), case)
    found = solve_wide(case.problem, case.run, objective=options.objective, on_progress=on_progress,
                       time_limit=options.left, effort=options.effort, seed=options.seed, workers=options.workers)
    return _judged(found, case)


def _judged(found: Schedule, case: WideCase) -> Schedule:
    """``found``, which keeps every rule and is one of the case's problem, with the options taken as its placement."""
    from weft.solver.judge.choice_rules import violations_of_choice

    faults = [*violations(found), *violations_of_choice(found, case.problem)]
    if faults:
        raise InvalidSchedule(faults)
    return found.with_solver(placement=assignment_title(found.choices)) if found.choices else found


def _solve_sequence(case: WideCase, options: SearchOptions, on_progress: Callable[[Progress], None]) -> Schedule:
    """The best schedule over all orders of the micro-batches, or over all classes that they may be of."""
    from weft.solver.choices.sequences.solve import solve_sequence

    return solve_sequence(case.problem, case.run, any_class=case.any_class, objective=options.objective,
                          on_progress=on_progress, time_limit=options.left, effort=options.effort, seed=options.seed,
                          workers=options.workers)


@dataclass(eq=False)
class _Entry:
    """A placement in the tournament: the bound by its devices' work and, once that does not rule it out, its search.

    ``bound`` and ``makespan`` are of what is searched for: the makespan, or another objective. A rate counts for all
    replicas together.
    """

    placement: Placement
    least: float
    search: Search | None = None
    refusal: Infeasible | None = None
    cut: Cut | None = None  # where it is one of the layers
    start: Schedule | None = None  # where it is a cut that was found beside the placements listed

    @property
    def bound(self) -> float:
        """The proven lower bound on its makespan so far."""
        return self.least if self.search is None else max(self.least, _of_all(self.search.value_bound, self))

    @property
    def makespan(self) -> float:
        """Of its best schedule so far."""
        return math.inf if self.search is None else _of_all(self.search.value, self)

    @property
    def ruled_out(self) -> bool:
        """Whether it is proven that it has no schedule."""
        return self.refusal is not None and not isinstance(self.refusal, NoneFound)

    def rank(self, *, easy_first: bool = True) -> tuple[bool, float]:
        """Smaller for what is to be searched sooner."""
        return easy_first and self.placement.is_hard, self.bound


class _Tournament:
    """The placements' searches, each in slices of one budget."""

    def __init__(self, case: Case, budget: Budget, on_progress: Callable[[Progress], None],
                 objective: str = "makespan") -> None:
        self.case = case
        self.objective = objective
        self.budget = budget
        self.on_progress = on_progress
        self.entries = [_Entry(placement, _least(placement, self._count(placement), objective))
                        for placement in (*case.placements, *case.whole_model)]
        self.cuts = _cut_search(case, budget)
        self.climb: Climb[Cut] | None = None
        self.running: dict[_Entry, Iterator[None]] = {}
        self.history = History()  # over all placements
        self.steps = 0  # of all searches
        self.faults: list[tuple[_Entry, Exception]] = []  # that stopped placements' searches

    @property
    def winner(self) -> Search | None:
        """The search that has the best schedule so far."""
        entry = self._leader
        return None if entry is None else entry.search

    @property
    def _leader(self) -> _Entry | None:
        return min((entry for entry in self.entries if entry.makespan < math.inf), key=lambda entry: entry.makespan,
                   default=None)

    @property
    def _best(self) -> float:
        """What the best schedule so far comes to."""
        leader = self._leader
        return math.inf if leader is None else leader.makespan

    @property
    def _done(self) -> tuple[float, int, int]:
        """What changes with every round that does anything."""
        return self.budget.deterministic_used, len(self.entries), self.steps

    def _count(self, placement: Placement) -> int:
        return self.case.micro_batches // placement.replicas

    def run(self) -> None:
        """Known schedules on all that may be best, then the cuts, then slices of the best ones and a look at the cuts
        with the least bounds, round after round."""
        for entry in sorted(self.entries, key=lambda entry: entry.rank()):
            if self.budget.left <= 0 and self.winner is not None:
                return
            self._begin(entry)
        self._look_at_cuts()
        length = _FIRST_SLICE
        while not self.budget.spent and (self.running or (self.cuts is not None and self.cuts.left)):
            before = self._done
            self._round(length, first=length == _FIRST_SLICE)
            if self._done == before:
                return  # what is left cannot be listed, or is proven
            length *= 2

    def _begin(self, entry: _Entry) -> None:
        """Known schedules first: none may be better than the answer."""
        if entry.least >= self._best:
            return
        start = entry.start or entry.placement.start
        try:
            if entry.placement.rounds is not None:
                from weft.solver.baselines.on_rounds import best_on_rounds

                start = best_on_rounds(entry.placement.rounds)
            entry.search = Search(entry.placement.problem, self._count(entry.placement), self.budget, self._report,
                                  start, objective=self.objective)
        except Exception as fault:
            self._note(entry, fault)
            return
        if self.winner is None and entry.search.is_large:
            forewarn(entry.search.operations, self.budget.elapsed, self.budget.seconds)
        steps = entry.search.steps()
        if entry.bound < self._best and self._run_slice(entry, steps, 0.0):
            self.running[entry] = steps

    def _look_at_cuts(self) -> None:
        if self.winner is None or self.cuts is None or self.budget.spent:
            return
        from weft.app.cuts.tries import tried
        from weft.solver.orders.climb import Climb

        self.climb = Climb(self.budget)
        self.cuts.open(self._best, _FEW)
        for entry in self.entries:
            entry.cut = self.cuts.cut_of(entry.placement)
        for found in tried(self.cuts, self.climb, beside=any(entry.cut is None for entry in self.running)):
            self._add(found.decision, found.schedule)
        self.cuts.narrow(self._best)
        self.cuts.open(self._best)

    def _add(self, cut: Cut, start: Schedule | None = None) -> None:
        """Search another cut, which is nobody else's then."""
        entry = _Entry(cut.placement, _least(cut.placement, self.case.micro_batches, self.objective),
                       cut=cut.of.taken(cut), start=start)
        self.entries.append(entry)
        self._begin(entry)

    def _round(self, length: float, *, first: bool) -> None:
        self._climb(length)
        self._drop_beaten()
        of_cuts = sorted((entry for entry in self.running
                          if entry.cut is not None and not self._is_settled(entry)),
                         key=lambda entry: entry.makespan)
        active = [*of_cuts[:_ACTIVE], *(entry for entry in self.running if entry.cut is None)]
        for entry in sorted(active, key=lambda entry: entry.rank(easy_first=first)):
            if self.budget.spent:
                return
            leader = self._leader
            beaten = leader not in (None, entry) and entry.bound >= self._best
            if self._is_settled(entry):
                continue
            before = entry.makespan
            if beaten or not self._run_slice(entry, self.running[entry], length):
                del self.running[entry]
            if entry.makespan < before:
                self._carry(entry)
        self._lowest(length)

    def _climb(self, length: float) -> None:
        """Climb on from the best cuts so far; a cut that is better than all is searched next."""
        if self.climb is None:
            return
        from weft.solver.orders.climb import Decided

        for entry in self.entries:
            if entry.cut is not None and entry.search is not None and entry.search.best is not None:
                self.climb.keep(Decided(entry.cut, entry.search.best))
        with self.budget.limited():
            self.climb.run(self.budget.slice(_CLIMB * length * (1 if self.running else 8)))
        if self.climb.kept and self.climb.kept[0].makespan < self._best:
            self._add(self.climb.kept[0].decision, self.climb.kept[0].schedule)

    def _is_settled(self, entry: _Entry) -> bool:
        """Whether it leads and is proven on its placement: the others are next, if there are any."""
        return (entry is self._leader and len(self.running) > 1 and entry.search is not None and entry.search.done)

    def _drop_beaten(self) -> None:
        for entry in [entry for entry in self.running if entry.bound >= self._best]:
            if entry is not self._leader:
                del self.running[entry]

    def _carry(self, entry: _Entry) -> None:
        """Where another cut serves the order that was found better, go on there."""
        if self.cuts is None or entry.cut is None or entry.search is None or entry.search.best is None:
            return
        with self.budget.limited():
            for other in self.cuts.others(entry.cut, entry.search.best):
                if other.makespan < entry.makespan:
                    self._add(other.decision, other.schedule)

    def _lowest(self, length: float) -> None:
        """A look at the cuts with the least bounds: what no bound rules out is searched for a moment."""
        if self.cuts is None:
            return
        self.cuts.narrow(self._best)
        time = self.budget.slice(_LOWEST * length * (1 if self.running else 8))
        with self.budget.limited():
            cut = self.cuts.lowest(self._best, time)
            if cut is not None:
                self._add(cut)

    def _run_slice(self, entry: _Entry, steps: Iterator[None], seconds: float) -> bool:
        """Search on for so many ``seconds``; whether the search may go on afterwards."""
        until = self._used() + seconds
        try:
            for _ in steps:
                self.steps += 1
                if self._used() >= until or self.budget.spent:
                    return True
        except Infeasible as refusal:
            entry.refusal = refusal
        except Exception as fault:
            if entry.search is not None and fault is entry.search.report.unheard:
                raise
            self._note(entry, fault)
        return False

    def _note(self, entry: _Entry, fault: Exception) -> None:
        """A fault in one placement's search takes nothing away from the others' schedules."""
        self.faults.append((entry, fault))

    def _used(self) -> float:
        return self.budget.elapsed if self.budget.deterministic is None else self.budget.deterministic_used

    def _report(self, progress: Progress) -> None:
        leader = self._leader
        if leader is None or leader.search is None:
            return
        self.history.record(self.budget.elapsed, self._best, self._bound())
        if progress.best.problem is not leader.search.problem:
            return
        # What is shown is a bound on every placement: it does not fall when another placement takes the lead.
        best = progress.best.with_value_bound(min(self._bound(), progress.best.value))
        self.on_progress(replace(progress, best=leader.placement.label(best)))

    def _bound(self) -> float:
        of_cuts = math.inf if self.cuts is None else self.cuts.bound
        return min([of_cuts, *(entry.bound for entry in self.entries if not entry.ruled_out)])

    def result(self) -> Schedule:
        leader = self._leader
        if leader is None or leader.search is None:
            if self.faults:
                raise self.faults[0][1]
            for entry in self.entries:
                if entry.search is not None:
                    rounds = entry.placement.rounds
                    entry.search.require_value("micro-batches" if rounds is None else rounds.counted)
            first = min(self.entries, key=lambda entry: entry.ruled_out, default=None)
            raise (first and first.refusal) or NoneFound(
                f"{self.case.name}: no schedule that fits the devices' memory was found within the limit, and it is "
                "not proven that there is none; give it more time or memory")
        best = leader.search.result()
        covered = self.case.coverage.text()
        if self.faults:
            best = best.with_solver(stopped="; ".join([*leader.search.report.stopped, *(
                f"{entry.placement.title}: {type(fault).__name__}: {fault}" for entry, fault in self.faults)]))
        if len(self.entries) == 1 and not self.case.spaces:
            return leader.placement.label(best).with_solver(**({"covered": covered} if covered else {}))
        self.history.record(self.budget.elapsed, best.makespan, self._bound())
        rows = [Searched(entry.placement.title, entry.bound, _makespan(entry.search),
                         entry is leader, str(entry.refusal or ""), cut_of_details(entry.placement.details))
                for entry in self.entries]
        return leader.placement.label(best).with_solver(
            placements=len(self.entries), covered=covered, bound_over_placements=min(self._bound(), leader.makespan),
            **choice(rows, self.case.refused, leader.makespan,
                     None if self.case.least_period is None else self.case.least_period * (
                         1 if self.objective == "rate" else self.case.micro_batches)),
            history=self.history.to_json())


def _cut_search(case: Case, budget: Budget) -> CutSearch | None:
    """The search over all cuts, where the case has them: what it imports is for specs alone."""
    if not case.spaces:
        return None
    from weft.app.cuts.search import CutSearch

    return CutSearch(case.spaces, case.micro_batches, budget)


def _makespan(search: Search | None) -> float | None:
    return None if search is None or search.best is None else search.best.makespan


def _least(placement: Placement, micro_batches: int, objective: str) -> float:
    """What no schedule of ``placement`` is below, by its devices' work."""
    if objective == "makespan":
        return load_bound(placement.problem, micro_batches)
    return work_alone(placement.problem, micro_batches if objective == "span" else 1) / (
        placement.replicas if objective == "rate" else 1)


def _of_all(value: float, entry: _Entry) -> float:
    """``value`` of one replica as that of all: a rate is shared by them."""
    shared = entry.search is not None and entry.search.objective == "rate"
    return value / entry.placement.replicas if shared else value
