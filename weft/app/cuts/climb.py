"""A climb over cuts and orders together: a layer moves from one stage to another, and the order is carried along.

A few good cuts are kept, each with its best order. One of them, rather a good one, is changed: a layer goes over one
boundary, or over several in a row. Its order is one of the new cut, too; where it does not fit the memory there, local
search repairs it. A fraction of a second of local search says whether the new cut takes a place among the few. Cuts
that their bounds rule out are not looked at. Seen on GPT-1.3B on four V100s: from 876.4 ms such a climb came to 864.1.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from weft.app.cuts.search import CutSearch, Proposal
from weft.app.lib.case import candidate_placement
from weft.models.cuts.numbers import orders_of_blocks, orders_of_stages
from weft.models.cuts.space import CutSpace
from weft.solver.cpsat.budget import Slice
from weft.solver.judge.validate import violations
from weft.solver.orders.local_search import LocalSearch
from weft.solver.pipeline import Pipeline
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.solver.ticks import TickProblem
from weft.solver.timing import Orders, time_orders

__all__ = ["MOVES", "Climb", "polished"]

#: Cuts that are kept, of one space, and of one makespan, where the newest replaces the oldest.
_KEPT, _OF_SPACE, _ALIKE = 12, 6, 2
#: Moves of local search on a cut: at first, and in all where it comes near the best of its time.
_LOOK, MOVES = 12_500, 100_000
#: A layout is climbed on where its best cut is no more times as long as the best of all; a cut is searched on after a
#: look where it is no more times as long. On the demo's model 1.005 reaches 864.1 ms within 30 CPU seconds from two of
#: three seeds, 1.02 as often but later.
_NEAR, _PROMISING = 1.04, 1.005
#: Deterministic seconds that are charged for an operation of a neighbour, which is timed and bounded.
_PER_NEIGHBOUR = 3e-6


def polished(cuts: CutSearch, space: CutSpace, borders: tuple[int, ...], orders: Orders, moves: int,
             near: float = math.inf) -> Proposal | None:
    """The cut ``borders`` with the best order that local search finds from ``orders`` on; ``None`` where none fits.
    After a look it goes on only where the makespan is less than ``near``, in seconds."""
    placement = candidate_placement(space.candidate(borders))
    instance = TickProblem.of(placement.problem)
    search = LocalSearch(instance, cuts.micro_batches, cuts.budget)
    if not search.begin(orders):
        return None
    search.round(cuts.budget.slice(), _LOOK)
    if search.fits and instance.time(search.makespan) < near:
        search.round(cuts.budget.slice(), moves - _LOOK)
    if not search.fits:
        return None
    operations = time_orders(placement.problem, cuts.micro_batches, search.orders())
    start = Schedule(placement.problem, cuts.micro_batches, operations, makespan_bound=0.0, solver={"name": "weft"})
    return None if violations(start, limit=1) else Proposal(space, borders, placement, start)


@dataclass
class Climb:
    """``kept``: the best cuts, the best first. ``seen``: cuts that were looked at."""

    cuts: CutSearch
    kept: list[Proposal] = field(default_factory=list)
    seen: set[tuple[int, tuple[int, ...]]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._random = random.Random(self.cuts.budget.seed)
        self._neighbours: dict[Proposal, list[tuple[tuple[int, ...], int]]] = {}

    def keep(self, proposal: Proposal) -> None:
        """Give ``proposal`` a place among the few, if it is good enough."""
        self.seen.add((id(proposal.space), proposal.borders))
        known = [kept for kept in self.kept if kept.space is proposal.space and kept.borders == proposal.borders]
        if any(kept.makespan <= proposal.makespan for kept in known):
            return
        self.kept = sorted([*(kept for kept in self.kept if kept not in known), proposal],
                           key=lambda kept: kept.makespan)
        alike = [kept for kept in self.kept if kept is not proposal
                 and abs(kept.makespan - proposal.makespan) <= RELATIVE_TOLERANCE * proposal.makespan]
        same = [kept for kept in self.kept if kept.space is proposal.space]
        if len(alike) >= _ALIKE:
            self.kept.remove(alike[0])
        elif len(same) > _OF_SPACE:
            self.kept.remove(same[-1])
        del self.kept[_KEPT:]

    def run(self, time: Slice) -> None:
        """Climb until ``time`` is over, or no neighbour is left."""
        while not time.spent:
            hopeful = [kept for kept in self.kept if self._neighbours.get(kept, True)]
            if not hopeful:
                return
            near = [kept for kept in hopeful if kept.makespan < _NEAR * self.kept[0].makespan] or hopeful
            space = self._random.choice(list({id(kept.space): kept.space for kept in near}.values()))
            own = [kept for kept in hopeful if kept.space is space]
            self._look_beside(own[int(len(own) * self._random.random() ** 2)])

    def _look_beside(self, parent: Proposal) -> None:
        """Local search on the next neighbour of ``parent`` that is not ruled out, from its order."""
        assert parent.start is not None
        pipeline, orders = Pipeline.of(parent.placement.problem), parent.start.orders
        if parent not in self._neighbours:
            self._neighbours[parent] = parent.space.neighbours(parent.borders, pipeline, orders)
            self.cuts.charge(_PER_NEIGHBOUR * len(self._neighbours[parent]) * self.cuts.operations(parent.space))
        waiting = self._neighbours[parent]
        while waiting:
            borders, bound = waiting.pop(0)
            if (id(parent.space), borders) not in self.seen and bound < 1e9 * self.kept[0].makespan:
                break
        else:
            return
        self.seen.add((id(parent.space), borders))
        own = Pipeline.of(parent.space.candidate(borders).problem)
        carried = orders_of_blocks(own, orders_of_stages(pipeline, orders))
        found = polished(self.cuts, parent.space, borders, carried, MOVES,
                         _PROMISING * self.kept[0].makespan)
        if found is not None:
            self.keep(found)
