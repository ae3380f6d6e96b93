"""Best first over what is left to decide: the node with the least bound is divided, a leaf is searched for a while.

A leaf goes back into the queue with the bound that its search has proven so far, so the least bound in the queue is one
on every problem there is; once it is not below the best schedule, that is optimal. In between the neighbours of the
best schedule's leaf are tried: the bound rises by the one, the best falls by the other.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable, Iterator
from itertools import count

from weft.solver.choices.carried import carried
from weft.solver.choices.leaf import Leaf
from weft.solver.choices.node import Node
from weft.solver.control.history import History
from weft.solver.cpsat.budget import Budget
from weft.solver.problem import ProblemError
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.solver.step.search import Progress
from weft.solver.wide.rounds import Rounds

__all__ = ["Tree"]

#: Seconds of a leaf's first slice; each later one is twice as long.
_FIRST_SLICE = 0.25
#: Neighbours that are tried for each node that is divided or searched on.
_BESIDE = 1


class Tree:
    """The search below ``root``, within ``budget``.

    ``leaves``: those that are, or were, under search. ``passed``: nodes that were not, as no schedule below them is
    better than the best.
    """

    def __init__(self, root: Node, budget: Budget, objective: str, on_progress: Callable[[Progress], None]) -> None:
        self.root = root
        self.budget = budget
        self.objective = objective
        self.on_progress = on_progress
        self.leaves: dict[Hashable, Leaf] = {}
        self.passed: list[Node] = []
        self.done: list[Leaf] = []
        self.history = History()
        self.leader: Leaf | None = None
        self._number = count()
        self._queue: list[tuple[float, int, Node]] = [(root.bound, 0, root)]
        self._beside: Iterator[Node] = iter(())
        self._beside_of: Leaf | None = None

    @property
    def best(self) -> float:
        """What the best schedule so far comes to."""
        return math.inf if self.leader is None else self.leader.value

    @property
    def bound(self) -> float:
        """What no schedule of any problem is below."""
        return min([self.best, *(bound for bound, _, _ in self._queue[:1]), *(leaf.bound for leaf in self.done)])

    @property
    def proven(self) -> bool:
        """Whether the best schedule is optimal."""
        return self.leader is not None and self.bound >= self._beaten

    @property
    def open_nodes(self) -> list[Node]:
        """What was neither divided nor put aside."""
        return [node for _, _, node in self._queue]

    def run(self) -> None:
        """Down to a first leaf, then the least bound and the best schedule's neighbours in turn."""
        self._dive()
        while self._queue and not self.budget.spent:
            if self._queue[0][0] >= self._beaten:
                self._put_aside()
                return
            for _ in range(_BESIDE):
                self._try_beside()
            if not self.budget.spent:
                self._least()

    @property
    def _beaten(self) -> float:
        """What a bound must reach to tell that nothing below is better."""
        return self.best * (1 - RELATIVE_TOLERANCE)

    def _dive(self) -> None:
        """A first schedule: always on to the child with the least bound."""
        node = self.root
        while (children := node.children()) is not None:
            node = min(children, key=lambda child: child.bound)
        self._begin(node)

    def _least(self) -> None:
        """Look closer at the node with the least bound."""
        _, _, node = heapq.heappop(self._queue)
        children = node.children() if node.key not in self.leaves else None
        if children is None:
            leaf = self._begin(node)
            if leaf.open and not leaf.proven:
                self._search(leaf, _FIRST_SLICE * 2 ** min(leaf.turns, 12))
            if leaf.open and not leaf.proven:
                self._push(node, leaf.bound)
            else:
                self.done.append(leaf)
            return
        for child in children:
            if child.bound < self._beaten:
                self._push(child, child.bound)
            else:
                self.passed.append(child)

    def _push(self, node: Node, bound: float) -> None:
        heapq.heappush(self._queue, (bound, next(self._number), node))

    def _put_aside(self) -> None:
        self.passed += [node for _, _, node in self._queue]
        self._queue = []

    def _begin(self, node: Node) -> Leaf:
        """The search of a leaf, with a first schedule."""
        leaf = self.leaves.get(node.key)
        if leaf is None:
            try:
                leaf = Leaf(node, self.budget, self.objective, self._tell, self._start)
            except ProblemError as error:
                options = ", ".join(f"{choice} = {option}" for choice, option in node.options.items())
                raise ProblemError(f"{error} (under {options})" if options else str(error)) from None
            self.leaves[node.key] = leaf
            if leaf.open and not (self.leader is not None and leaf.bound >= self._beaten):
                self._search(leaf, 0.0)
        return leaf

    def _search(self, leaf: Leaf, seconds: float) -> None:
        leaf.run(seconds)
        if leaf.value < self.best:
            self.leader = leaf
        if self.leader is not None:
            self.history.record(self.budget.elapsed, self.best, self.bound)

    def _start(self, rounds: Rounds) -> Schedule | None:
        """The best order so far, for another problem."""
        if self.leader is None or self.leader.search is None or self.leader.search.best is None:
            return None
        return carried(self.leader.search.best, rounds)

    def _try_beside(self) -> None:
        """The next neighbour of the best schedule's leaf that may be better."""
        if self._beside_of is not self.leader and self.leader is not None:
            self._beside_of, self._beside = self.leader, iter(self.root.beside(self.leader.node))
        for node in self._beside:
            if node.key not in self.leaves and node.bound < self._beaten:
                self._begin(node)
                return

    def _tell(self, progress: Progress) -> None:
        if self.leader is not None and progress.best.value > self.best:
            return
        bound = min(self.bound, progress.best.value)
        self.on_progress(Progress(progress.best.with_value_bound(bound), progress.elapsed, progress.phase))
