"""The two roles of the period search, each with one call shape: refuters raise the bound, improvers shorten the best.

A new technique is one file in ``refuters/`` or ``improvers/``, one line in that room's registry and one in
:mod:`weft.solver.period.strategy`, which says when it comes and how much time it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self, TypeAlias, runtime_checkable

from weft.solver.cpsat.budget import Slice
from weft.solver.period.bracket import Bracket
from weft.solver.relations.min_dist import Distances, least_distances
from weft.solver.ticks import TickProblem

#: The least distances between all blocks at a period in ticks; None if they refute it.
DistancesAt: TypeAlias = Callable[[TickProblem, int], Distances | None]


@dataclass(frozen=True)
class Task:
    """The inputs of techniques, beside the bracket.

    ``near``: the least period, in ticks, that least distances leave open. ``seed`` is for random choices. ``distances``
    returns the least distances that models start from.
    """

    near: int
    seed: int = 0
    distances: DistancesAt = least_distances


class Steps(Protocol):
    """The periods that a refuter tries, one climb long (:mod:`weft.solver.period.climb`)."""

    def next(self, low: int, high: int) -> list[int]:
        """Periods between ``low``, which is refuted, and ``high``, which is open or achieved; none ends the climb."""


class Technique(Protocol):
    """The common part of both roles."""

    #: Its name in reports and in ``without`` of :func:`weft.solver.period.search.find_period`.
    name: ClassVar[str]

    @classmethod
    def of(cls, bracket: Bracket, task: Task) -> Self | None:
        """None if the problem lacks the structure that the technique needs."""


@runtime_checkable
class Refuter(Technique, Protocol):
    """A way to prove that no steady state has a period or a shorter one.

    Two things differ from a single ``refutes(period)``. Periods come in short lists, because some techniques test two
    in parallel, a thread each. And ``ready`` says whether the technique is worth the time at all: some know beforehand
    how long a period will take.
    """

    #: Whether there is no finer refinement left to try.
    exhausted: bool = False
    #: The longest period refuted before the technique starts; None: that of the bracket.
    known: int | None = None

    def steps(self) -> Steps:
        """How to climb with it."""

    def refutes(self, periods: Sequence[int], time: Slice) -> list[int]:
        """Those of ``periods`` (ticks, ascending) for which it is proven that no steady state has them or shorter ones;
        nothing is known about the others."""

    def sharpen(self, time: Slice) -> bool:
        """Finer cells, larger subsets. False if there are none, or none that are worth ``time`` now."""
        return False

    def ready(self, time: Slice) -> bool:
        """Whether a period can be tried within ``time``."""
        return not self.exhausted


@runtime_checkable
class Improver(Technique, Protocol):
    """A way to find steady states that are shorter than the best one of a bracket."""

    def improve(self, bracket: Bracket, time: Slice) -> None:
        """Offer results to ``bracket``, refutations on the way too."""
