"""Which technique runs when, and for how long: a generator that :mod:`weft.solver.period.search` iterates.

After every slot it looks at the bracket and at the state of the technique. Two constants draw the line
(:class:`~weft.solver.period.params.Parameters`): below ``many_blocks`` whole models decide one period after the other;
from there on local search of rings comes first, as a short best period leaves less to refute, then structure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from math import ceil
from typing import TypeAlias, TypeVar

from weft.solver.cpsat.budget import Budget, Slice
from weft.solver.period.bracket import Bracket
from weft.solver.period.decide import size
from weft.solver.period.improvers.list_schedule import ListSchedule
from weft.solver.period.improvers.ring_search import RingSearch
from weft.solver.period.improvers.whole_model_solve import WholeModelSolve
from weft.solver.period.params import PARAMETERS
from weft.solver.period.refuters.least_distances import LeastDistances
from weft.solver.period.refuters.v_shape import VShape
from weft.solver.period.technique import Improver, Refuter, Task, Technique

#: A technique and the time it gets.
Slot: TypeAlias = tuple[Refuter | Improver, Slice]

_Technique = TypeVar("_Technique", bound=Technique)


class Strategy:
    """The slots of time of one search; techniques named in ``without`` get none."""

    def __init__(self, bracket: Bracket, time: Slice, task: Task, without: Collection[str]) -> None:
        self.bracket, self.time, self.task, self.without = bracket, time, task, without
        self.blocks = len(bracket.instance.durations)
        self.many = self.blocks >= PARAMETERS.many_blocks
        self.each = PARAMETERS.first_try * size(bracket.instance)  # deterministic seconds of a try in this pass
        self.ring: RingSearch | None = None
        self.v_shape: VShape | None = None  # where it helps

    def slots(self) -> Iterator[Slot]:
        """Techniques of negligible cost; for many blocks local search and structure; then ever longer passes."""
        yield from self._at_once()
        self.ring = self._made(RingSearch) if self.many else None
        if self.ring is not None:
            yield self.ring, self.time
        if self.many and (v_shape := self._made(VShape)) is not None:
            yield v_shape, self.time.at_most(self.each * PARAMETERS.v_shape_opening)
            self.v_shape = v_shape if v_shape.helped else None
        yield from self._passes()

    def _at_once(self) -> Iterator[Slot]:
        unlimited = Slice(Budget())
        if (distances := self._made(LeastDistances)) is not None:
            yield distances, unlimited
            self.task = replace(self.task, near=distances.near)
        if (listed := self._made(ListSchedule)) is not None:
            yield listed, unlimited

    def _passes(self) -> Iterator[Slot]:
        """Improvers, then refuters, until the gap is closed to a tick; every pass longer than the one before."""
        solve = self._made(WholeModelSolve)
        while not self.time.spent and self.bracket.refuted < ceil(self.bracket.best.period) - 1:
            now = self.time.at_most(self.each)
            if self.ring is not None:
                yield self.ring, self.time
            if self.v_shape is not None:
                yield self.v_shape, now
            if solve is not None:
                yield solve, now
            if self.each >= self.time.each:
                return
            self.each *= PARAMETERS.longer

    def _made(self, technique: type[_Technique]) -> _Technique | None:
        if technique.name in self.without:
            return None
        with self.bracket.counts.timed(technique.name):
            return technique.of(self.bracket, self.task)
