"""Best first over the open decisions: the node with the least bound is divided, a leaf is searched for a while.

A leaf goes back into the queue with the bound that its search has proven so far, so the least bound in the queue is one
on every problem there is; once it is not below the best schedule, that is optimal. In between a climb over leaves and
orders continues from the best schedules: the one raises the bound, the other lowers the best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator

from weft.solver.baselines.on_rounds import best_on_rounds
from weft.solver.choices.decision import Leaves, Taken, carried, scheduled
from weft.solver.choices.node import ChoiceNode
from weft.solver.choices.partial import Partial
from weft.solver.cpsat.budget import Budget
from weft.solver.orders.climb import Climb, Decided
from weft.solver.portfolio import Candidate, Parts, Portfolio
from weft.solver.problem import Options, ProblemError
from weft.solver.problem.block import options_text
from weft.solver.problem.rounds import Rounds
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.solver.step.search import Progress

#: Seconds of a leaf's first slice; each later one is twice as long.
_FIRST_SLICE = 0.25
#: The share of the time left for the bound on everything, and for the way down to a first leaf.
_DIVE = 0.2
#: The final time for the neighbours that were ruled out, per second of the whole search.
_OTHERS = 0.5
#: The final time for the best leaf's search, per second of the whole, if it was not the only one.
_LAST = 0.5
#: The time of the climb: at first, in seconds, and per second of the whole; half of it after a climb in vain.
_FIRST_CLIMB, _CLIMB = 0.05, 0.25
#: There is no climb on schedules of more operations: carrying an order to some neighbours takes seconds.
_MOST_OPERATIONS = 10_000


class Tree(Portfolio[Taken]):
    """The search below ``root``, within ``budget``.

    ``leaves``: the candidates that are, or were, under search. ``passed``: nodes that were not, as no schedule below
    them is better than the best. ``least``: the bound on all of them at once.
    """

    def __init__(self, root: ChoiceNode, budget: Budget, objective: str, on_progress: Callable[[Progress], None]
                 ) -> None:
        super().__init__(budget, objective, on_progress)
        self.root = root
        self.least = 0.0
        self.leaves: dict[Hashable, Candidate[Taken]] = {}
        self.passed: list[ChoiceNode] = []
        self.done: list[Candidate[Taken]] = []
        self._queue: Parts[ChoiceNode] = Parts()
        self._queue.push(0.0, root)
        self._climb: Climb[Taken] = Climb(budget, again=True)
        self._leaves = Leaves(root, budget)
        self._climbed, self._in_vain = 0.0, 0
        self._beside: Iterator[ChoiceNode] = iter(())
        self._beside_of: Candidate[Taken] | None = None

    @property
    def bound(self) -> float:
        """What no schedule of any problem is below."""
        return min(self.best, max(self.least, min([self._queue.bound, *(leaf.bound for leaf in self.done)])))

    @property
    def proven(self) -> bool:
        """Whether the best schedule is optimal."""
        return self.leader is not None and self.bound >= self._beaten

    @property
    def parts(self) -> list[tuple[Options, float]]:
        """Options and what is proven of all that is below them; all there is belongs to some."""
        nodes = [*((node, bound) for bound, node in self._queue), *((node, node.bound) for node in self.passed)]
        parts = [(node.options, self.leaves[node.key].bound if node.key in self.leaves else bound)
                 for node, bound in nodes]
        return parts + [(leaf.of.node.options, leaf.bound) for leaf in self.done]

    def run(self) -> None:
        """Down to a first leaf, a look at some others, then the least bound and the climb in turn; at last the cost of
        other options, and the remaining results of the best leaf's search, such as its steady state."""
        with self.budget.limited(_DIVE):
            self.least = self.root.bound
        self._dive()
        self._look()
        while self._queue and not self.budget.spent:
            if self.proven or self._queue.bound >= self._beaten:
                break
            self._look_beside()
            if not self.budget.spent:
                self._closer()
        self._show_others()
        if self.leader is not None and not self.budget.spent:
            self.go_on(self.leader, math.inf if len(self.leaves) == 1 else max(_FIRST_SLICE, _LAST * self.used))

    def _show_others(self) -> None:
        """First schedules of the best leaf's neighbours that were ruled out: their costs."""
        if self.leader is None or "other options" in self.budget.without:
            return
        until = max(_FIRST_SLICE, (1 + _OTHERS) * self.used)
        for node in self._one_option_away(self.leader):
            if self.budget.spent or self.used > until:
                return
            if node.key not in self.leaves and math.isfinite(node.bound):
                self.go_on(self._begin(node), 0.0)

    def _look(self) -> None:
        """Known schedules at promising leaves: the answer is no worse than these."""
        for node in () if "first looks" in self.budget.without else self.root.looks():
            if self.budget.spent:
                return
            if node.key not in self.leaves and node.bound < self._beaten:
                self._begin(node)

    @property
    def _beaten(self) -> float:
        """The bound from which on nothing below is better."""
        return self.best * (1 - RELATIVE_TOLERANCE)

    def _dive(self) -> None:
        """A first schedule: always continue to the child with the least bound; if that takes too long, of any leaf."""
        node = self.root
        with self.budget.limited(_DIVE):
            while (children := node.children()) is not None:
                node = min(children, key=lambda child: child.bound)
        if isinstance(node, Partial):
            node = node.any_leaf()
        while (children := node.children()) is not None:
            node = children[0]
        self._begin(node)

    def _closer(self) -> None:
        """Look closer at the node with the least bound."""
        with self._queue.divided() as node:
            self._divide(node)

    def _divide(self, node: ChoiceNode) -> None:
        children = node.children() if node.key not in self.leaves else None
        if children is None:
            leaf = self._begin(node)
            if leaf.open and not leaf.proven:
                self.go_on(leaf, _FIRST_SLICE * 2 ** min(leaf.turns, 12))
            if leaf.open and not leaf.proven:
                self._queue.push(leaf.bound, node)
            else:
                self.done.append(leaf)
            return
        for child in children:
            if child.bound < self._beaten:
                self._queue.push(child.bound, child)
            else:
                self.passed.append(child)

    def _begin(self, node: ChoiceNode, start: Schedule | None = None) -> Candidate[Taken]:
        """The search of a leaf, with a first schedule: ``start``, or the best one's order."""
        leaf = self.leaves.get(node.key)
        if leaf is not None and start is not None and leaf.search is not None:
            leaf.search.incumbent.offer(start.orders, "weft")
            self.follow(leaf)
        if leaf is None:
            try:
                leaf = self._leaf(node, start)
            except ProblemError as error:
                options = options_text(node.options)
                raise ProblemError(f"{error} (under {options})" if options else str(error)) from None
            self.leaves[node.key] = leaf
            if leaf.search is not None and not (self.leader is not None and leaf.bound >= self._beaten):
                self.go_on(leaf, 0.0)
        return leaf

    def _leaf(self, node: ChoiceNode, start: Schedule | None) -> Candidate[Taken]:
        of = self._leaves.at(node)
        start = self._start(of.rounds) if start is None else start
        leaf = Candidate(of, node.bound, of.problem, of.micro_batches, _better(start, of.rounds, node.bound))
        try:
            self.begin(leaf)
        except ProblemError:
            raise
        except ValueError as fault:  # the objective means nothing here
            leaf.fault, leaf.open, leaf.least = fault, False, math.inf
        return leaf

    def _start(self, rounds: Rounds) -> Schedule | None:
        """The best order so far, for another problem."""
        if (self.leader is None or self.leader.search is None or self.leader.search.best is None
                or "carried orders" in self.budget.without):
            return None
        return scheduled(rounds, carried(self.leader.search.best, self.leader.of.rounds, rounds))

    def _look_beside(self) -> None:
        """Search for better schedules of leaves that differ little from good ones: by a climb, or, if the schedules are
        long or not for the least makespan, which is all that it supports, one after the other."""
        if "neighbours" in self.budget.without or self.leader is None or self.leader.search is None:
            return
        if self.objective != "makespan" or self.leader.search.operations > _MOST_OPERATIONS:
            self._try_beside(self.leader)
            return
        seconds = (_FIRST_CLIMB + _CLIMB * self.used) / 2 ** self._in_vain - self._climbed
        if seconds > 0:
            best = self.best
            self._climb_on(seconds)
            self._in_vain = 0 if self.best < best else self._in_vain + 1

    def _climb_on(self, seconds: float) -> None:
        """Continue the climb from all schedules of leaves for ``seconds``; its results are given to them."""
        before = self.used
        for leaf in self.leaves.values():
            if leaf.search is not None and leaf.search.best is not None:
                self._climb.keep(Decided(leaf.of, leaf.search.best))
        try:
            with self.budget.limited():
                for _ in self._climb.steps(self.budget.slice(seconds)):
                    if self.used >= before + seconds:
                        break
                    if self._climb.kept[0].makespan * (1 - RELATIVE_TOLERANCE) <= self.bound:
                        break
        finally:
            self._climbed += self.used - before
            for kept in self._climb.kept:
                leaf_of = self.leaves.get(kept.decision.key)
                if kept.makespan < (self._beaten if leaf_of is None else leaf_of.value * (1 - RELATIVE_TOLERANCE)):
                    self._begin(kept.decision.node, kept.schedule)

    def _try_beside(self, leader: Candidate[Taken]) -> None:
        """The next neighbour of the best schedule's leaf that may be better."""
        if self._beside_of is not leader:
            self._beside_of, self._beside = leader, iter(self._one_option_away(leader))
        for node in self._beside:
            if node.key not in self.leaves and node.bound < self._beaten:
                self._begin(node)
                return

    def _one_option_away(self, leaf: Candidate[Taken]) -> list[ChoiceNode]:
        """The leaves that differ from it by one option, those with the least bounds first."""
        taken = leaf.of.node.options.items()
        return sorted((node for node in self.root.beside(leaf.of.node) if len(node.options.items() - taken) == 1),
                      key=lambda node: node.bound)


def _better(carried: Schedule | None, rounds: Rounds, bound: float) -> Schedule | None:
    """``carried`` or, if micro-batches differ, the best known schedule: the search itself knows those of equal
    micro-batches. None is better than one that meets the ``bound``."""
    met = carried is not None and carried.makespan <= bound * (1 + RELATIVE_TOLERANCE)
    known = None if rounds.is_plain or met else best_on_rounds(rounds)
    return min((found for found in (carried, known) if found is not None), key=lambda found: found.makespan,
               default=None)
