"""Periods of a V shape refuted in finer and finer cells (:mod:`weft.solver.period.refuters.v_shape_dp`)."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import ClassVar, Self

from weft.solver.cpsat.budget import Slice
from weft.solver.period.bracket import Bracket
from weft.solver.period.climb import Thirds
from weft.solver.period.params import PARAMETERS
from weft.solver.period.refuters.v_shape_dp import VPatterns
from weft.solver.period.structure.v_shape import V
from weft.solver.period.technique import Refuter, Task


class VShape(Refuter):
    """Refutes periods of ``shape``; every :meth:`sharpen` makes cells finer, even from one climb to a later one.

    ``helped`` says whether any period has been refuted. ``period``, in ticks, is near the one sought.
    """

    name: ClassVar[str] = "v-shape"

    def __init__(self, shape: V, period: int) -> None:
        self.shape = shape
        self.helped = False
        self._gained = False  # in these cells
        self._period = period
        self._length = -(-period // PARAMETERS.v_shape_first_cells)  # of a cell, in ticks: whole ones blur least
        self._states = self._most_states = 0.0  # of a period in these cells, and of one device: a guess

    @classmethod
    def of(cls, bracket: Bracket, task: Task) -> Self | None:
        """None if the blocks are not a V of two chunks."""
        shape = V.of(bracket.instance)
        return None if shape is None else cls(shape, task.near)

    @property
    def exhausted(self) -> bool:  # type: ignore[override]
        """Whether there are no finer cells, or too many states of them."""
        return (self._length < 1 or self._period > PARAMETERS.v_shape_most_cells * self._length
                or self._most_states > PARAMETERS.v_shape_most_states)

    @property
    def _cost(self) -> float:
        """Approximate deterministic seconds of a period in these cells."""
        return self._states / PARAMETERS.v_shape_second

    def ready(self, time: Slice) -> bool:
        """Whether a period takes at most a few times as long as a model may take."""
        return not self.exhausted and self._cost <= PARAMETERS.v_shape_patience * time.left

    def steps(self) -> Thirds:
        """Two periods at a time."""
        return Thirds(PARAMETERS.v_shape_closest, PARAMETERS.v_shape_growth)

    def refutes(self, periods: Sequence[int], time: Slice) -> list[int]:
        """The periods that these cells refute, a thread each."""
        budget = time.budget
        patterns = [VPatterns(self.shape, period, -(-period // self._length)) for period in periods]
        impossible = budget.side_by_side(lambda one: one.refuted(budget), patterns)
        if impossible is None:
            return []
        self._states = max(one.states for one in patterns)
        self._most_states = max(one.most_states for one in patterns)
        budget.deterministic_used += sum(one.states for one in patterns) / PARAMETERS.v_shape_second
        refuted = [period for period, is_refuted in zip(periods, impossible, strict=True) if is_refuted]
        if refuted:
            self.helped = self._gained = True
        return refuted

    def sharpen(self, time: Slice) -> bool:
        """Finer cells, which multiply states by the cube; False if the last ones were slow and refuted nothing."""
        worth = self._gained or self._cost <= time.left
        shorter = min(self._length - 1, ceil(self._length * PARAMETERS.v_shape_shorter))
        more = (self._length / max(1, shorter)) ** 3
        self._length, self._states, self._most_states = shorter, more * self._states, more * self._most_states
        self._gained = False
        return worth
