"""Leaves of the tree as decisions to climb over: options of choices, classes of micro-batches."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property

from weft.solver.choices.carried import carried
from weft.solver.choices.node import Node
from weft.solver.control.clock import checkpoint
from weft.solver.cpsat.budget import Budget
from weft.solver.orders.local_search import LocalSearch
from weft.solver.problem import Problem, ProblemError
from weft.solver.schedule import Schedule
from weft.solver.ticks import TickProblem
from weft.solver.timing import Orders
from weft.solver.wide.rounds import Rounds

__all__ = ["Leaves", "Taken"]

#: Neighbours that the order is carried to in one go, from which the best ones are taken first.
_AT_ONCE = 8
#: Deterministic seconds that one takes, for each operation: its problem is made, and its order timed.
_PER_OPERATION = 2e-5


@dataclass(frozen=True, eq=False)
class Taken:
    """The leaf ``node`` of the tree below ``root``: see :class:`~weft.solver.orders.climb.Decision`."""

    of: Leaves
    node: Node

    @property
    def key(self) -> Hashable:
        return self.node.key

    @property
    def group(self) -> Hashable:
        return None

    @property
    def bound(self) -> float:
        return self.node.bound

    @cached_property
    def rounds(self) -> Rounds:
        return self.node.rounds()

    @property
    def problem(self) -> Problem:
        return self.rounds.problem

    @property
    def micro_batches(self) -> int:
        return self.rounds.run.rounds

    def neighbours(self, schedule: Schedule) -> Iterator[Taken]:
        """Itself, as its order may be a first one, and what the tree has beside it, if anything: where the order is
        shortest and fits best first."""
        return self.of.beside(self, schedule)

    def carried(self, of: Taken, schedule: Schedule) -> Orders:
        return schedule.orders if of is self else carried(schedule, of.rounds, self.rounds)


class Leaves:
    """All leaves below ``root``, for a climb within ``budget``."""

    def __init__(self, root: Node, budget: Budget) -> None:
        self.root = root
        self.budget = budget
        self._random = random.Random(budget.seed)

    def at(self, node: Node) -> Taken:
        """The decision that the leaf ``node`` is."""
        return Taken(self, node)

    def beside(self, taken: Taken, schedule: Schedule) -> Iterator[Taken]:
        """See :meth:`Taken.neighbours`. Some leaves at a time are drawn at random."""
        nodes = [*self.root.beside(taken.node)]
        if nodes:
            yield taken
        self._random.shuffle(nodes)
        for first in range(0, len(nodes), _AT_ONCE):
            found: list[tuple[float, int, Taken]] = []
            for number, node in enumerate(nodes[first:first + _AT_ONCE]):
                checkpoint()
                other = self.at(node)
                try:
                    search = LocalSearch(TickProblem.of(other.problem), other.micro_batches, self.budget)
                except ProblemError:
                    continue  # the tree says what is wrong with it, where it gets there
                self.budget.deterministic_used += _PER_OPERATION * other.micro_batches * len(other.problem.blocks)
                if search.begin(other.carried(taken, schedule)):
                    found.append((search.cost, number, other))
            yield from (other for _, _, other in sorted(found, key=lambda entry: entry[:2]))
