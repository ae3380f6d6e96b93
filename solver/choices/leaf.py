"""A leaf of the tree under search: one plain problem, looked at in slices of a budget that all of them share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from weft.solver.baselines.on_rounds import best_on_rounds
from weft.solver.choices.node import Node
from weft.solver.cpsat.budget import Budget
from weft.solver.feasibility.infeasible import Infeasible, NoneFound
from weft.solver.problem import ProblemError
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.solver.step.search import Progress, Search
from weft.solver.wide.rounds import Rounds

__all__ = ["Leaf"]


class Leaf:
    """The search of ``node``'s problem. ``refusal``: why it has no schedule; ``fault``: what its search ended by.

    ``open``: whether more time may find or prove something.
    """

    def __init__(self, node: Node, budget: Budget, objective: str, on_progress: Callable[[Progress], None],
                 start: Callable[[Rounds], Schedule | None] = lambda _: None) -> None:
        self.node = node
        self.budget = budget
        self.refusal: Infeasible | None = None
        self.fault: Exception | None = None
        self.search: Search | None = None
        self.steps: Iterator[None] = iter(())
        self.open = True
        self.turns = 0
        self.rounds = node.rounds()
        problem = self.rounds.problem
        try:
            self.search = Search(problem, self.rounds.run.rounds, budget, on_progress,
                                 _better(start(self.rounds), self.rounds, node.bound), objective)
            self.steps = self.search.steps()
        except ProblemError:
            raise
        except ValueError as fault:  # the objective means nothing here
            self.fault, self.open = fault, False

    @property
    def bound(self) -> float:
        """What no schedule of it is below; infinite where it has none."""
        if self.search is None or (self.refusal is not None and not isinstance(self.refusal, NoneFound)):
            return math.inf
        return min(max(self.node.bound, self.search.value_bound), self.value)

    @property
    def value(self) -> float:
        """Of its best schedule so far; infinite where there is none."""
        return math.inf if self.search is None else self.search.value

    @property
    def proven(self) -> bool:
        """Whether nothing better is left in it."""
        return self.bound >= self.value * (1 - RELATIVE_TOLERANCE)

    def offer(self, schedule: Schedule) -> None:
        """Go on from ``schedule`` where it is better."""
        if self.search is not None:
            self.search.incumbent.offer(schedule.orders, "weft")

    def run(self, seconds: float) -> None:
        """Search on for so many ``seconds``, at least one step."""
        until = self._used() + seconds
        self.turns += 1
        try:
            for _ in self.steps:
                if self._used() >= until or self.budget.spent:
                    return
        except Infeasible as refusal:
            self.refusal = refusal
        except Exception as fault:
            if self.search is not None and fault is self.search.report.unheard:
                raise
            self.fault = fault
        self.open = False

    def _used(self) -> float:
        return self.budget.elapsed if self.budget.deterministic is None else self.budget.deterministic_used


def _better(carried: Schedule | None, rounds: Rounds, bound: float) -> Schedule | None:
    """``carried`` or, where micro-batches differ, the best known schedule: the search itself knows those of
    micro-batches that are alike. None is better than one that meets the ``bound``."""
    met = carried is not None and carried.makespan <= bound * (1 + RELATIVE_TOLERANCE)
    known = None if rounds.is_plain or met else best_on_rounds(rounds)
    return min((found for found in (carried, known) if found is not None), key=lambda found: found.makespan,
               default=None)
