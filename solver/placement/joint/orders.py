"""The orders of several candidates, searched in slices of one budget: those with the smallest bounds go on longest."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from weft.solver.cpsat.budget import Budget
from weft.solver.feasibility.infeasible import Infeasible, NoneFound
from weft.solver.placement.joint.candidates import Candidate
from weft.solver.placement.joint.params import JointParams
from weft.solver.schedule import Schedule
from weft.solver.step.search import Progress, Search

__all__ = ["Orders"]


@dataclass(eq=False)
class _SearchedCandidate:
    """A candidate whose orders are searched, or have been."""

    candidate: Candidate
    search: Search
    steps: Iterator[None]
    refusal: Infeasible | None = None

    @property
    def makespan(self) -> float:
        return math.inf if self.search.best is None else self.search.best.makespan

    @property
    def bound(self) -> float:
        """No schedule of the candidate is shorter."""
        if self.refusal is not None and not isinstance(self.refusal, NoneFound):
            return math.inf
        return max(self.candidate.bound, self.search.makespan_bound)


class Orders:
    """Searches of whole steps (:class:`weft.solver.step.search.Search`). ``entries``: those begun. ``refusal``: why a
    candidate has no schedule."""

    def __init__(self, budget: Budget, on_progress: Callable[[Progress], None], params: JointParams) -> None:
        self.budget, self.on_progress, self.params = budget, on_progress, params
        self.entries: list[_SearchedCandidate] = []
        self.refusal: Infeasible | None = None

    @property
    def leader(self) -> _SearchedCandidate | None:
        """The entry with the shortest schedule so far."""
        return min((entry for entry in self.entries if entry.makespan < math.inf), key=lambda entry: entry.makespan,
                   default=None)

    @property
    def best(self) -> tuple[Candidate, Schedule] | None:
        """The shortest schedule so far, and whose it is."""
        leader = self.leader
        return None if leader is None else (leader.candidate, leader.search.result())

    def bound_of(self, candidate: Candidate) -> float:
        """No schedule of ``candidate`` is shorter."""
        return next((entry.bound for entry in self.entries if entry.candidate is candidate), candidate.bound)

    def makespan_of(self, candidate: Candidate) -> float:
        """Of its shortest schedule so far, 1F1B or found."""
        return min([candidate.makespan, *(e.makespan for e in self.entries if e.candidate is candidate)])

    def search(self, candidates: Sequence[Candidate]) -> None:
        """Search the orders of ``candidates``, in this order at first, ``finalists`` at once, until the time is over or
        nothing is left that may be shorter than the best."""
        waiting, length = list(candidates), self.params.first_slice
        running: list[_SearchedCandidate] = []
        while (waiting or running) and not (self.budget.spent and self.leader is not None):
            while waiting and len(running) < self.params.finalists and not (self.budget.spent and running):
                candidate = waiting.pop(0)
                if candidate.bound < self._makespan or not running:
                    running.append(self._begin(candidate))
            for entry in sorted(running, key=lambda entry: entry.bound):
                if self.budget.spent and self.leader is not None:
                    return
                proven = entry is self.leader and entry.search.done
                beaten = entry is not self.leader and entry.bound >= self._makespan
                if proven and (len(running) > 1 or waiting):
                    continue  # the others are next
                if beaten or not self._run(entry, length):
                    running.remove(entry)
            if not waiting and all(entry is self.leader and entry.search.done for entry in running):
                return
            length *= 2

    @property
    def _makespan(self) -> float:
        return math.inf if self.leader is None else self.leader.makespan

    def _begin(self, candidate: Candidate) -> _SearchedCandidate:
        search = Search(candidate.problem, candidate.rounds, self.budget, self._report, candidate.start)
        entry = _SearchedCandidate(candidate, search, search.steps())
        self.entries.append(entry)
        return entry

    def _run(self, entry: _SearchedCandidate, seconds: float) -> bool:
        """Search on for so many ``seconds``; whether the search may go on afterwards."""
        until = self._used() + seconds
        try:
            for _ in entry.steps:
                if self._used() >= until or self.budget.spent:
                    return True
        except Infeasible as refusal:
            entry.refusal = self.refusal = refusal
        return False

    def _used(self) -> float:
        return self.budget.elapsed if self.budget.deterministic is None else self.budget.deterministic_used

    def _report(self, progress: Progress) -> None:
        leader = self.leader
        if leader is not None and leader.search.problem is progress.best.problem:
            self.on_progress(replace(progress, best=replace(progress.best, makespan_bound=min(
                progress.best.makespan, *(entry.bound for entry in self.entries)))))
