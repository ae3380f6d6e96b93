"""Periods refuted by least distances (Rau's MinDist, closed under two more arguments; see
:mod:`weft.solver.relations.min_dist`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from weft.solver.cpsat.budget import Slice
from weft.solver.period.bracket import Bracket
from weft.solver.period.climb import Bisection
from weft.solver.period.technique import Refuter, Task
from weft.solver.relations.min_dist import least_distances
from weft.solver.ticks import TickProblem


class LeastDistances(Refuter):
    """Refutes a period whose least distances have a positive cycle, or need more memory than there is. Takes
    milliseconds.

    ``near`` is the least period that it leaves open, in ticks. The load is tried too: as a bound on the period it is
    not refuted by that alone.
    """

    name: ClassVar[str] = "least-distances"

    def __init__(self, instance: TickProblem) -> None:
        self.instance = instance
        self.near = instance.heaviest_load
        self.known = instance.heaviest_load - 1

    @classmethod
    def of(cls, bracket: Bracket, task: Task) -> Self | None:
        """Any problem has least distances."""
        return cls(bracket.instance)

    def steps(self) -> Bisection:
        """Down to a tick."""
        return Bisection()

    def refutes(self, periods: Sequence[int], time: Slice) -> list[int]:
        """The periods without least distances."""
        refuted = [period for period in periods if least_distances(self.instance, period) is None]
        self.near = max([self.near, *(period + 1 for period in refuted)])
        return refuted
