"""The cuts of a case in addition to its listed placements: which may still be best, and which to search.

Cuts and orders improve each other. A known order is carried to all cuts at once, which finds its best cut; on that cut
a better order is found, and so on. Cuts not ruled out by any schedule keep their lower bounds: the least of these is a
bound on every cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import accumulate

from weft.app.lib.case import CasePlacement, candidate_placement
from weft.app.lib.placements import SEARCHES
from weft.app.lib.verdicts import backward_title, layout_title
from weft.models.cuts.space import MOST_CARRIED, CutSpace, orders_of_blocks, orders_of_stages
from weft.solver.control.clock import checkpoint
from weft.solver.cpsat.budget import Budget, Slice
from weft.solver.orders.climb import Decided, judged
from weft.solver.pipeline import Pipeline
from weft.solver.problem import Problem
from weft.solver.schedule import Schedule
from weft.solver.step.proven import Proven
from weft.solver.step.shorter import shorter
from weft.solver.ticks import TickProblem
from weft.solver.timing import Orders

#: The share of the remaining time for listing and bounding cuts.
_LISTING = 0.1
#: Deterministic seconds charged for a stage of a listed cut, and for an operation of a cut whose bound is raised, of a
#: cut to which an order is carried, and of a neighbour, which is timed and bounded: the measured costs.
_PER_STAGE, _PER_BOUND, _PER_CARRIED, _PER_NEIGHBOUR = 5e-7, 1.5e-6, 2e-8, 3e-6
#: The same for an operation ordered by a known schedule: for searches, and for the others.
_PER_ORDERED, _PER_RULE = 6e-4, 5e-5
#: With more operations a step no schedule is tried: known ones alone take seconds each.
_MOST_OPERATIONS = 20_000
#: Up to this many operations a step, cuts are tested for a schedule shorter than the best; the deterministic seconds of
#: a test, and the charge for a pair of operations of one GPU.
_MOST_ASKED, _ASKED, _PER_PAIR = 600, 0.1, 6e-6
#: Maximum and minimum number of cuts whose bounds are raised at once.
_RAISED, _FEWEST = 4000, 16


def space_title(space: CutSpace) -> str:
    """The title of a placement, such as "V, 2 chunks, I+W"."""
    layout = space.ground.layout
    return f"{layout_title(layout.shape, layout.chunks)}, {backward_title(space.backward)}"


@dataclass(frozen=True, eq=False)
class CutDecision:
    """A cut of ``space`` as the decision of a climb: see :class:`~weft.solver.orders.climb.Decision`. ``bound`` in
    seconds."""

    of: CutSearch
    space: CutSpace
    borders: tuple[int, ...]
    bound: float = 0.0

    @property
    def key(self) -> tuple[int, tuple[int, ...]]:
        return self.group, self.borders

    @property
    def group(self) -> int:
        return id(self.space)

    @property
    def micro_batches(self) -> int:
        return self.of.micro_batches

    @property
    def problem(self) -> Problem:
        return self.placement.problem

    @cached_property
    def placement(self) -> CasePlacement:
        """The cut as a placement."""
        return candidate_placement(self.space.candidate(self.borders))

    def neighbours(self, schedule: Schedule) -> list[CutDecision]:
        """The cuts reached by moving one layer to another stage, those with the shortest order first."""
        found = self.space.neighbours(self.borders, Pipeline.of(self.problem), schedule.orders)
        self.of.charge(_PER_NEIGHBOUR * len(found) * self.of.operations(self.space))
        return [CutDecision(self.of, self.space, borders, bound * 1e-9) for borders, bound in found]

    def carried(self, of: CutDecision, schedule: Schedule) -> Orders:
        rows = orders_of_stages(Pipeline.of(of.problem), schedule.orders)
        return orders_of_blocks(Pipeline.of(self.problem), rows)


class CutSearch:
    """The cuts of ``spaces`` that are not ruled out, for a search within ``budget``. Initially no cuts are listed.
    Times in seconds."""

    def __init__(self, spaces: Sequence[CutSpace], micro_batches: int, budget: Budget) -> None:
        self.spaces = spaces
        self.micro_batches = micro_batches
        self.budget = budget
        #: Per space, the makespan below which its cuts were last listed.
        self.listed: dict[int, float] = {}
        for space in spaces:
            space.forget()

    @property
    def bound(self) -> float:
        """A lower bound over all cuts not taken; infinite if none is left."""
        return min((space.least * 1e-9 for space in self.spaces if space.least is not None), default=math.inf)

    @property
    def worth_trying(self) -> list[CutSpace]:
        """The spaces on whose cuts schedules are tried: excluding small ones that another space nearly equals, and very
        long steps."""
        return [space for space in self.spaces
                if space.cuts is not None and len(space.cuts) and space.ground.needed is None
                and self.operations(space) <= _MOST_OPERATIONS]

    @property
    def left(self) -> bool:
        """Whether cuts are left."""
        return any(space.least is not None for space in self.spaces)

    @staticmethod
    def borders_of(placement: CasePlacement) -> tuple[int, ...]:
        """The first layer of every stage, and the number of layers."""
        return (0, *accumulate(map(len, placement.details.get("layers_of_stage") or ())))

    def charge_orders(self, space: CutSpace, name: str) -> None:
        """Count the work of a known schedule's orders."""
        self.charge((_PER_ORDERED if name in SEARCHES else _PER_RULE) * self.operations(space))

    def cut_of(self, placement: CasePlacement) -> CutDecision | None:
        """The cut of ``placement``, taken from its space; None if it belongs to none."""
        borders = self.borders_of(placement)
        for space in self.spaces:
            if "memory_plan" not in placement.details and space_title(space) == placement.title:
                return self.taken(CutDecision(self, space, borders))
        return None

    def narrow(self, best: float) -> None:
        """Drop the cuts ruled out by ``best``."""
        for space in self.spaces:
            if space.cuts is not None:
                space.narrow(_ns(best))

    def open(self, best: float, most: int | None = None) -> None:
        """List the cuts not ruled out by ``best``, fewest stages first, or, initially, ``most`` of each space; if all
        are listed, raise the bounds of some."""
        time = self.budget.slice(share=_LISTING)
        with self.budget.limited(_LISTING):
            for space in self.spaces:
                if time.spent:
                    return
                if not space.complete:
                    self._list(space, best, most)
            while most is None and not time.spent and self.raise_some(best, time):
                pass

    def _list(self, space: CutSpace, best: float, most: int | None = None) -> None:
        listed = space.open(_ns(best), *(() if most is None else (most,)))
        self.charge(_PER_STAGE * listed * space.ground.layout.stages)
        if most is None:
            self.listed[id(space)] = best

    def raise_some(self, best: float, time: Slice) -> bool:
        """Raise the bounds of the cuts with the least bounds, as ``time`` permits; whether there were any to raise."""
        waiting = [space for space in self.spaces if space.waiting]
        if not waiting:
            return False
        space = min(waiting, key=lambda space: space.least or 0)
        most = max(_FEWEST, min(_RAISED, int(time.left / (_PER_BOUND * self.operations(space)))))
        count = space.tighten(most, _ns(best))
        self.charge(_PER_BOUND * count * self.operations(space))
        space.narrow(_ns(best))
        return True

    def operations(self, space: CutSpace) -> int:
        """The number of operations of a schedule of one of its cuts."""
        return self.micro_batches * space.ground.layout.stages * (1 if space.backward == "none" else 3)

    def charge(self, seconds: float) -> None:
        """Count work as deterministic time."""
        self.budget.deterministic_used += seconds

    def taken(self, cut: CutDecision) -> CutDecision:
        """``cut`` with its best known bound; the cut is removed from this search."""
        return replace(cut, bound=max(cut.bound, cut.space.take(cut.borders) / 1e9))

    def carried(self, of: CutDecision, orders: Orders) -> Decided[CutDecision] | None:
        """The best cut for ``orders``, which belong to the cut ``of``; None if the judge refuses them there."""
        space = of.space
        if space.cuts is None or not len(space.cuts):
            return None
        self.charge(_PER_CARRIED * min(self.operations(space) * len(space.cuts), MOST_CARRIED))
        rows = orders_of_stages(Pipeline.of(of.problem), orders)
        found = space.carried(of.borders, rows)
        if found is None:
            return None
        cut = CutDecision(self, space, found[1])
        start = judged(cut.problem, self.micro_batches, orders_of_blocks(Pipeline.of(cut.problem), rows))
        return None if start is None else Decided(cut, start)

    def lowest(self, best: float, time: Slice) -> tuple[CutDecision, Schedule | None] | None:
        """The cut with the least bound not ruled out by :meth:`look`, to be searched, with a schedule shorter than
        ``best`` if one was found; None if time or cuts run out first."""
        looked_at: set[tuple[int, tuple[int, ...]]] = set()
        while not time.spent:
            if self._list_more(best) or self.raise_some(best, time):
                continue
            space = min((space for space in self.spaces if space.cuts is not None and len(space.cuts)),
                        key=lambda space: space.least or 0, default=None)
            if space is None:
                return None
            [borders] = space.some(1)
            cut, schedule = CutDecision(self, space, borders), None
            if cut.key not in looked_at:
                looked_at.add(cut.key)
                cut, schedule = self.look(cut, best)
                space.raise_bound(borders, _ns(cut.bound))
                space.narrow(_ns(best))
                if schedule is None:
                    continue
            return cut, schedule
        return None

    def look(self, cut: CutDecision, best: float, seconds: float = _ASKED) -> tuple[CutDecision, Schedule | None]:
        """``cut`` with all its bounds, and a schedule shorter than ``best`` if one is found in ``seconds``."""
        checkpoint()
        proven, operations = Proven(TickProblem.of(cut.problem), self.micro_batches), self.operations(cut.space)
        proven.raise_by_all()
        self.charge(10 * _PER_BOUND * operations)
        bound, schedule = proven.makespan, None
        if bound < best and operations <= _MOST_ASKED:
            than = math.ceil(best / float(proven.instance.tick) * (1 - 1e-12))
            found = shorter(proven, than, self.budget, seconds)
            self.charge(_PER_PAIR * operations ** 2 / cut.space.ground.layout.gpus)
            bound = max(bound, proven.instance.bound(Fraction(found.bound), self.micro_batches))
            schedule = None if found.orders is None else judged(cut.problem, self.micro_batches, found.orders)
        return replace(cut, bound=max(cut.bound, bound)), schedule

    def _list_more(self, best: float) -> bool:
        """If the least bound belongs to unlisted cuts, list that space again below a better makespan; whether that was
        the case."""
        left = [space for space in self.spaces if space.least is not None]
        space = min(left, key=lambda space: space.least or 0, default=None)
        if space is None or space.complete or self.listed.get(id(space)) == best:
            return False
        self._list(space, best)
        return True


def _ns(seconds: float) -> int:
    """Nanoseconds, such that everything not shorter is ruled out."""
    return math.ceil(seconds * 1e9 * (1 - 1e-12))
