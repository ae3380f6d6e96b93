"""One climb over decisions and orders together: a decision changes by little, and the order is carried along.

A decision leaves a plain problem: a cut of layers into stages, the options of choices, the class of every micro-batch.
A few good ones are kept, each with its best order. One of them, rather a good one, is changed; its order is one of the
changed problem, too, and where it does not fit the memory there, local search repairs it. A fraction of a second of
that says whether the new decision is gone on with, and whether it takes a place among the few. What its bound rules out
is not looked at. Seen on GPT-1.3B on four V100s: from 876.4 ms such a climb over cuts came to 864.1.
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

from weft.solver.control.clock import checkpoint
from weft.solver.cpsat.budget import Budget, Slice
from weft.solver.judge.validate import violations
from weft.solver.orders.local_search import LocalSearch
from weft.solver.problem import Problem
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.solver.ticks import TickProblem
from weft.solver.timing import Orders, time_orders

#: Decisions that are kept, of one group, and of one makespan, where the newest replaces the oldest.
_KEPT, _OF_GROUP, _ALIKE = 12, 6, 2
#: Moves of local search on a decision: at first, and in all where it comes near the best of its time.
_LOOK, _MOVES = 12_500, 100_000
#: A group is climbed on where its best decision is no more times as long as the best of all; a decision is searched on
#: after a look where it is no more times as long. On the demo's model 1.005 reaches 864.1 ms within 30 CPU seconds from
#: two of three seeds, 1.02 as often but later.
_NEAR, _PROMISING = 1.04, 1.005


class Decision(Protocol):
    """Something that is decided so that a plain ``problem`` is left, for ``micro_batches``.

    ``key``: what no other decision has. Those of one ``group`` are changes of each other, and groups take turns.
    ``bound``: no schedule under it is shorter, in the problem's time unit.
    """

    @property
    def key(self) -> Hashable: ...

    @property
    def group(self) -> Hashable: ...

    @property
    def bound(self) -> float: ...

    @property
    def problem(self) -> Problem: ...

    @property
    def micro_batches(self) -> int: ...

    def neighbours(self, schedule: Schedule) -> Iterable[Self]:
        """Those that differ from it by little, the likelier ones to be better than its ``schedule`` first. What finding
        them takes is charged to the budget."""
        ...

    def carried(self, of: Self, schedule: Schedule) -> Orders | None:
        """The order of a ``schedule`` under the decision ``of`` as one under this, whether it fits or not; ``None``
        where it is none."""
        ...


D = TypeVar("D", bound=Decision)


@dataclass(frozen=True, eq=False)
class Decided(Generic[D]):
    """A ``decision`` with a judged ``schedule`` of its problem."""

    decision: D
    schedule: Schedule

    @property
    def makespan(self) -> float:
        """Of the schedule."""
        return self.schedule.makespan


class Climb(Generic[D]):
    """The climb within ``budget``. ``kept``: the best decisions, the best first.

    ``again``: a decision is looked at once more from each better order, as where there are few; else only once.
    """

    def __init__(self, budget: Budget, *, again: bool = False) -> None:
        self.budget = budget
        self._again = again
        self.kept: list[Decided[D]] = []
        self._random = random.Random(budget.seed)
        self._neighbours: dict[Decided[D], Iterator[D] | None] = {}  # that wait, ``None`` where none is left
        self._shortest: dict[Hashable, float] = {}  # the makespan of each decision that was offered
        self._from: dict[Hashable, float] = {}  # the shortest makespan from whose order a decision was looked at

    def keep(self, found: Decided[D]) -> None:
        """Give ``found`` a place among the few, if it is good enough and better than what its decision had before."""
        key, makespan = found.decision.key, found.makespan
        if makespan >= self._shortest.get(key, math.inf):
            return
        self._shortest[key] = makespan
        if not self._again:
            self._from[key] = 0.0
        others = [kept for kept in self.kept if kept.decision.key != key]
        self.kept = sorted([*others, found], key=lambda kept: kept.makespan)
        alike = [kept for kept in others if abs(kept.makespan - makespan) <= RELATIVE_TOLERANCE * makespan]
        same = [kept for kept in self.kept if kept.decision.group == found.decision.group]
        if len(alike) >= _ALIKE:
            self.kept.remove(alike[0])
        elif len(same) > _OF_GROUP:
            self.kept.remove(same[-1])
        del self.kept[_KEPT:]
        self._neighbours = {kept: self._neighbours[kept] for kept in self.kept if kept in self._neighbours}

    def run(self, time: Slice) -> None:
        """Climb until ``time`` is over, or no neighbour is left."""
        for _ in self.steps(time):
            pass

    def steps(self, time: Slice) -> Iterator[None]:
        """The same, a step before each look at a neighbour."""
        while not time.spent:
            hopeful = [kept for kept in self.kept if self._neighbours.get(kept, ()) is not None]
            if not hopeful:
                return
            yield
            checkpoint()
            near = [kept for kept in hopeful if kept.makespan < _NEAR * self.kept[0].makespan] or hopeful
            group = self._random.choice(list({kept.decision.group: None for kept in near}))
            own = [kept for kept in hopeful if kept.decision.group == group]
            self._look_beside(own[int(len(own) * self._random.random() ** 2)], time)

    def _look_beside(self, parent: Decided[D], time: Slice) -> None:
        """Local search on the next neighbour of ``parent`` that is not ruled out, from its order."""
        if parent not in self._neighbours:
            self._neighbours[parent] = iter(parent.decision.neighbours(parent.schedule))
        best = self.kept[0].makespan
        for decision in self._neighbours[parent] or ():
            if (parent.makespan < self._from.get(decision.key, math.inf) * (1 - RELATIVE_TOLERANCE)
                    and decision.bound < best * (1 - RELATIVE_TOLERANCE)):
                break
        else:
            self._neighbours[parent] = None
            return
        self._from[decision.key] = parent.makespan if self._again else 0.0
        orders = decision.carried(parent.decision, parent.schedule)
        found = None if orders is None else self.ordered(decision, orders, time, _PROMISING * best)
        if found is not None:
            self.keep(found)

    def ordered(self, decision: D, orders: Orders, time: Slice, near: float = math.inf) -> Decided[D] | None:
        """``decision`` with the best order that local search finds from ``orders`` on; ``None`` where none fits.
        After a look it goes on only where the makespan is less than ``near``."""
        problem, micro_batches = decision.problem, decision.micro_batches
        instance = TickProblem.of(problem)
        search = LocalSearch(instance, micro_batches, self.budget)
        if not search.begin(orders):
            return None
        search.round(time, _LOOK)
        if search.fits and instance.time(search.makespan) < near:
            search.round(time, _MOVES - _LOOK)
        if not search.fits:
            return None
        schedule = judged(problem, micro_batches, search.orders())
        return None if schedule is None else Decided(decision, schedule)


def judged(problem: Problem, micro_batches: int, orders: Orders) -> Schedule | None:
    """The schedule in these ``orders``; ``None`` where the judge refuses it. Raises
    :class:`~weft.solver.timing.DeadlockError` where they cannot be run."""
    operations = time_orders(problem, micro_batches, orders)
    schedule = Schedule(problem, micro_batches, operations, makespan_bound=0.0, solver={"name": "weft"})
    return None if violations(schedule, limit=1) else schedule
