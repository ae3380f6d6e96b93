"""Periods refuted by the blocks of some of the devices alone, at the least distances that hold for all blocks.

A steady state of all devices satisfies the model of some of them, so if that is infeasible there is no such steady
state (:func:`weft.solver.period.decide.refuted_in_parts`). Conflicts are local more often than not: few devices are
refuted far sooner than all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from weft.solver.cpsat.budget import Slice
from weft.solver.period.bracket import Bracket
from weft.solver.period.climb import Doubling
from weft.solver.period.decide import refuted_in_parts
from weft.solver.period.params import PARAMETERS
from weft.solver.period.technique import DistancesAt, Refuter, Task
from weft.solver.ticks import TickProblem

__all__ = ["DeviceSubsets"]


class DeviceSubsets(Refuter):
    """Refutes a period by stretches of a share of the devices; :meth:`sharpen` goes on to larger shares."""

    name: ClassVar[str] = "device-subsets"

    def __init__(self, instance: TickProblem, distances: DistancesAt) -> None:
        self.instance, self.distances = instance, distances
        self._shares = [share for share in PARAMETERS.subsets
                        if share * len(instance.durations) <= PARAMETERS.most_blocks]
        self._level = 0

    @classmethod
    def of(cls, bracket: Bracket, task: Task) -> Self | None:
        """None where there are few devices, or even the smallest subsets have too many blocks."""
        subsets = cls(bracket.instance, task.distances)
        used = sum(map(bool, bracket.instance.blocks_on))
        return subsets if subsets._shares and used >= PARAMETERS.subsets_from else None

    def steps(self) -> Doubling:
        """By doubling steps."""
        return Doubling(PARAMETERS.models_closest)

    def refutes(self, periods: Sequence[int], time: Slice) -> list[int]:
        """Those that some stretch of the present share refutes."""
        return [period for period in periods
                if refuted_in_parts(self.instance, period, self._shares[self._level], time, self.distances)]

    def sharpen(self, time: Slice) -> bool:
        """The next larger share."""
        self._level += 1
        self.exhausted = self._level >= len(self._shares)
        return not self.exhausted
