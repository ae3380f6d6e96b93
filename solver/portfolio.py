"""Several problems of which one schedule is wanted: searched side by side within one budget, the best one leads.

A *candidate* is a problem with a bound. Its own search (:class:`weft.solver.step.search.Search`) runs in slices, or an
external one runs whole; either way the results stay with it: its best schedule, its bound, why it has none. A
*portfolio* has the candidates. The best schedule of all *leads*; a candidate whose bound is not below the leader's
value is *beaten* and gets no more time. So the answer is no worse than the best of any candidate, however the search
ends, and the least bound of all is a bound on all.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Generic, TypeVar

from weft.solver.control.counts import History
from weft.solver.cpsat.budget import Budget
from weft.solver.feasibility.infeasible import Infeasible, NoneFound
from weft.solver.problem import Problem
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.solver.step.search import Progress, Search

T = TypeVar("T")


class Parts(Generic[T]):
    """Parts of a set of alternatives, each with a lower bound, to be divided or searched: the least bound comes first,
    of equal ones the least ``rank``, then the oldest."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, T]] = []
        self._divided: list[tuple[float, int, int, T]] = []
        self._number = count()

    def __bool__(self) -> bool:
        return bool(self._heap)

    def __iter__(self) -> Iterator[tuple[float, T]]:
        """The parts with their bounds, in no order."""
        return ((bound, part) for bound, _, _, part in (*self._heap, *self._divided))

    def push(self, bound: float, part: T, rank: int = 0) -> None:
        """Add a part, or the rest of one."""
        heapq.heappush(self._heap, (bound, rank, next(self._number), part))

    @property
    def bound(self) -> float:
        """What no part is below; infinite where none is left."""
        return min((entry[0] for entry in (*self._heap[:1], *self._divided)), default=math.inf)

    @property
    def first(self) -> T:
        """The part with the least bound."""
        return self._heap[0][3]

    def pop(self) -> T:
        """Remove and return the part with the least bound."""
        return heapq.heappop(self._heap)[3]

    @contextmanager
    def divided(self) -> Iterator[T]:
        """Take it out while the block puts in what it is made of: whatever breaks that off, its bound counts on."""
        for entry in self._divided:
            heapq.heappush(self._heap, entry)
        self._divided = self._heap[:1]
        yield self.pop()
        self._divided = []

    def drop(self, most: float) -> None:
        """Forget all whose bound is not below ``most``."""
        self._heap, self._divided = ([entry for entry in entries if entry[0] < most]
                                     for entries in (self._heap, self._divided))
        heapq.heapify(self._heap)


@dataclass(eq=False)
class Candidate(Generic[T]):
    """One of several problems, with ``of`` as its owner's key.

    ``least``: a lower bound on all its schedules. ``problem``, ``micro_batches``, ``start``: the instance searched in
    slices, and its first schedule; None if its search runs whole. ``copies``: this many of its values make one, as
    replicas share a rate. ``found``: its best schedule if no search in slices has a better one. ``refusal``: why it has
    no schedule; ``fault``: another exception that ended its search. ``turns``, ``taken``: slices so far, and steps in
    them. ``open``: whether more time may find or prove something.
    """

    of: T
    least: float = 0.0
    problem: Problem | None = None
    micro_batches: int = 0
    start: Schedule | None = None
    copies: int = 1
    found: Schedule | None = None
    refusal: Infeasible | None = None
    fault: Exception | None = None
    search: Search | None = None
    steps: Iterator[None] = field(default_factory=lambda: iter(()))
    turns: int = 0
    taken: int = 0
    open: bool = True

    @property
    def best(self) -> Schedule | None:
        """The best schedule so far."""
        return self.found if self.search is None else self.search.best

    @property
    def value(self) -> float:
        """The value of the best schedule so far; infinite if there is none."""
        return math.inf if self.best is None else self.best.value / self.copies

    @property
    def bound(self) -> float:
        """The lower bound on all its schedules; infinite if it is proven that it has none."""
        if self.ruled_out:
            return math.inf
        proven = self.least if self.search is None else max(self.least, self.search.value_bound / self.copies)
        return min(proven, self.value)

    @property
    def ruled_out(self) -> bool:
        """Whether it is proven that it has no schedule."""
        return self.refusal is not None and not isinstance(self.refusal, NoneFound)

    @property
    def proven(self) -> bool:
        """Whether it contains nothing better."""
        return self.bound >= self.value * (1 - RELATIVE_TOLERANCE)


class Portfolio(Generic[T]):
    """The candidates ``entries``, within ``budget``. ``leader``: the one whose schedule was the best first.

    ``running``: those with slices to come, ``waiting``: those without any so far. ``history``: of the best value and
    the bound on all. ``in_any_case``: whether a first schedule is searched for even if the budget is spent.
    ``interrupted``: whether a whole search was.
    """

    def __init__(self, budget: Budget, objective: str = "makespan",
                 on_progress: Callable[[Progress], None] = lambda _: None, *, in_any_case: bool = False) -> None:
        self.budget, self.objective, self.on_progress = budget, objective, on_progress
        self.in_any_case = in_any_case
        self.entries: list[Candidate[T]] = []
        self.running: list[Candidate[T]] = []
        self.waiting: list[Candidate[T]] = []
        self.leader: Candidate[T] | None = None
        self.history = History()
        self.interrupted = False

    # -- what is known ------------------------------------------------------------------------------------------------

    @property
    def best(self) -> float:
        """The value of the best schedule so far."""
        return math.inf if self.leader is None else self.leader.value

    @property
    def beside(self) -> float:
        """The lower bound on everything that has no entry yet."""
        return math.inf

    @property
    def bound(self) -> float:
        """The lower bound on the schedules of all candidates."""
        return min([self.best, self.beside, *(entry.bound for entry in self.entries)])

    def is_beaten(self, candidate: Candidate[T]) -> bool:
        """Whether another one leads and it cannot be better."""
        return self.leader is not None and candidate is not self.leader and candidate.bound >= self.best

    def is_settled(self, candidate: Candidate[T]) -> bool:
        """Whether it leads and is proven: the others are next, if there are any."""
        return (candidate is self.leader and candidate.search is not None and candidate.search.done
                and (len(self.running) > 1 or bool(self.waiting)))

    @property
    def used(self) -> float:
        """Seconds so far, of the limited kind."""
        return self.budget.elapsed if self.budget.deterministic is None else self.budget.deterministic_used

    @property
    def must_end(self) -> bool:
        """Whether there is no time for another slice."""
        return self.budget.spent and not (self.in_any_case and self.leader is None)

    def nothing(self, name: str) -> Exception:
        """Why there is no schedule: an open reason of any candidate before the proven reasons of all."""
        for entry in self.entries:
            if entry.fault is not None:
                return entry.fault
        first = min(self.entries, key=lambda entry: entry.ruled_out, default=None)
        return (None if first is None else first.refusal) or NoneFound(
            f"{name}: no schedule that fits the devices' memory was found within the limit, and it is not proven that "
            "there is none; give it more time or memory")

    # -- in slices ----------------------------------------------------------------------------------------------------

    def begin(self, candidate: Candidate[T]) -> None:
        """Create its search. Raises like :class:`~weft.solver.step.search.Search`."""
        assert candidate.problem is not None
        candidate.search = Search(candidate.problem, candidate.micro_batches, self.budget, self.heard(candidate),
                                  candidate.start, self.objective)
        candidate.steps = candidate.search.steps()
        self.follow(candidate)
        if candidate is self.leader and candidate.best is not None:  # by its start schedule
            self.tell(Progress(candidate.best, self.budget.elapsed, "start"), candidate)

    def go_on(self, candidate: Candidate[T], seconds: float) -> bool:
        """Continue its search for ``seconds``, at least one step; whether it may continue afterwards. A fault in it
        does not affect the others' schedules."""
        until = self.used + seconds
        candidate.turns += 1
        try:
            for _ in candidate.steps:
                candidate.taken += 1
                if self.used >= until or self.budget.spent:
                    return True
        except Infeasible as refusal:
            candidate.refusal = refusal
        except Exception as fault:
            if candidate.search is not None and fault is candidate.search.report.unheard:
                raise
            candidate.fault = fault
        finally:
            self.follow(candidate)
        candidate.open = False
        return False

    def round(self, active: Iterable[Candidate[T]], seconds: float) -> None:
        """A slice for each candidate in ``active`` that is ``running``, in this order."""
        for candidate in active:
            if self.must_end:
                return
            if self.is_settled(candidate):
                continue
            before = candidate.value
            if self.is_beaten(candidate) or not self.go_on(candidate, seconds):
                self.running.remove(candidate)
            if candidate.value < before:
                self.improved(candidate)

    def improved(self, candidate: Candidate[T]) -> None:
        """Called after it has found a better schedule."""

    def search_all(self, candidates: Sequence[Candidate[T]], at_once: int, seconds: float) -> None:
        """Search ``candidates``, in this order at first, ``at_once`` at a time, until the time is over or nothing is
        left that may be better than the best. The first slices take ``seconds``, each later one twice as long."""
        self.waiting = list(candidates)
        while (self.waiting or self.running) and not self.must_end:
            while self.waiting and len(self.running) < at_once and not (self.budget.spent and self.running):
                candidate = self.waiting.pop(0)
                if candidate.bound < self.best:
                    self.entries.append(candidate)
                    self.begin(candidate)
                    self.running.append(candidate)
            self.round(sorted(self.running, key=lambda entry: entry.bound), seconds)
            if not self.waiting and all(entry is self.leader and entry.search is not None and entry.search.done
                                        for entry in self.running):
                return
            seconds *= 2

    # -- whole --------------------------------------------------------------------------------------------------------

    def take(self, candidate: Candidate[T], solve: Callable[..., Schedule], *asked: object, **limits: object
             ) -> Schedule | None:
        """The result of ``solve``, a whole search with an ``on_progress``, for it; ``None`` if there is none."""
        try:
            found = solve(*asked, on_progress=self.heard(candidate), **limits)
        except Infeasible as refusal:
            candidate.refusal = refusal
            return None
        bound = float(found.solver.get("bound_over_placements", found.value_bound))
        candidate.least = max(candidate.least, min(bound, found.value))
        if candidate.found is None or found.value < candidate.found.value:
            candidate.found = self.labelled(candidate, found)
        self.interrupted |= bool(found.solver.get("interrupted"))
        self.follow(candidate)
        return found

    # -- what is told -------------------------------------------------------------------------------------------------

    def follow(self, candidate: Candidate[T]) -> None:
        """Let it lead if its schedule is the best."""
        if candidate.value < self.best:
            self.leader = candidate
        if self.leader is not None:
            self.history.record(self.budget.elapsed, self.best, self.bound)

    def labelled(self, candidate: Candidate[T], schedule: Schedule) -> Schedule:
        """``schedule`` of it as it is reported."""
        return schedule

    def tell(self, progress: Progress, candidate: Candidate[T] | None = None) -> None:
        """Pass on the progress of a search, of ``candidate`` if of one: nothing worse than the best so far, and only
        bounds that are valid for all."""
        copies = 1
        if candidate is not None:
            copies = candidate.copies
            self.follow(candidate)
        value = progress.best.value / copies
        if value <= self.best:
            best = progress.best.with_value_bound(min(self.bound, value) * copies)
            self.on_progress(replace(progress, best=best if candidate is None else self.labelled(candidate, best),
                                     elapsed=self.budget.elapsed))

    def heard(self, candidate: Candidate[T]) -> Callable[[Progress], None]:
        """The progress listener for its search."""
        return partial(self.tell, candidate=candidate)
