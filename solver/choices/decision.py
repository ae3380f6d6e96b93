"""Leaves of the tree as decisions to climb over: options of choices, classes of micro-batches.

The order of one problem's schedule is carried to another one: with other options, or micro-batches of other classes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property

from weft.solver.choices.node import ChoiceNode
from weft.solver.control.clock import checkpoint
from weft.solver.cpsat.budget import Budget
from weft.solver.orders.climb import judged
from weft.solver.orders.local_search import LocalSearch
from weft.solver.problem import Problem, ProblemError
from weft.solver.problem.rounds import Rounds
from weft.solver.schedule import Schedule
from weft.solver.ticks import TickProblem
from weft.solver.timing import DeadlockError, Orders

#: The number of neighbours that the order is carried to at a time, from which the best ones are taken first.
_AT_ONCE = 8
#: Deterministic seconds for one of them, per operation: its problem is made, and its order timed.
_PER_OPERATION = 2e-5


@dataclass(frozen=True, eq=False)
class Taken:
    """The leaf ``node`` of the tree below ``root``: see :class:`~weft.solver.orders.climb.Decision`."""

    of: Leaves
    node: ChoiceNode

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
        """Itself, as its order may be a first one, and its neighbours in the tree, if any: those for which the order is
        shortest and fits best first."""
        return self.of.beside(self, schedule)

    def carried(self, of: Taken, schedule: Schedule) -> Orders:
        return schedule.orders if of is self else carried(schedule, of.rounds, self.rounds)


class Leaves:
    """All leaves below ``root``, for a climb within ``budget``."""

    def __init__(self, root: ChoiceNode, budget: Budget) -> None:
        self.root = root
        self.budget = budget
        self._random = random.Random(budget.seed)

    def at(self, node: ChoiceNode) -> Taken:
        """The decision of the leaf ``node``."""
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


_Place = tuple[int, int]


def carried(best: Schedule, of: Rounds, rounds: Rounds) -> Orders:
    """The order of ``best``, a schedule of the rounds ``of``, as one of ``rounds``, whether it fits or not.

    Blocks are matched by their names, micro-batches by their numbers in their jobs. Operations that ``best`` lacks come
    right before the first that waits for them.
    """
    problem = rounds.problem
    ranks = _ranks(best, of, rounds)
    rows: list[list[_Place]] = [[] for _ in problem.devices]
    place = {block: at for at, block in enumerate(problem.topological_order)}
    for block, m in sorted(ranks, key=lambda op: (ranks[op], op[1], place[op[0]])):
        for device in problem.blocks[block].devices:
            rows[device].append((block, m))
    return rows


def scheduled(rounds: Rounds, orders: Orders) -> Schedule | None:
    """The schedule of ``rounds`` in these orders; ``None`` if it does not fit."""
    try:
        return judged(rounds.problem, rounds.run.rounds, orders)
    except DeadlockError:
        return None


def _ranks(best: Schedule, of: Rounds, rounds: Rounds) -> dict[_Place, float]:
    """The rank of each operation: none comes before those it waits for in its round."""
    known: dict[tuple[str, int], float] = {}
    for operation in best.operations:
        block, m = of.apart(operation.block, operation.micro_batch)
        known[of.origin.blocks[block].name, m] = operation.start
    problem = rounds.problem
    later: list[list[int]] = [[] for _ in problem.blocks]
    for producer, consumer, wait in problem.dependencies():
        if not wait.distance:
            later[producer].append(consumer)
    ranks: dict[_Place, float] = {}
    for block in reversed(problem.topological_order):
        for m in range(rounds.run.rounds):
            copied, number = rounds.apart(block, m)
            following = min((ranks[after, m] for after in later[block]), default=math.inf)
            ranks[block, m] = known.get((rounds.origin.blocks[copied].name, number), following)
    for block in problem.topological_order:
        for after in later[block]:
            for m in range(rounds.run.rounds):
                ranks[after, m] = max(ranks[after, m], ranks[block, m])
    return ranks
