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
    """What techniques are made of, beside the bracket.

    ``near``: the least period, in ticks, that least distances leave open. ``seed`` is for random choices.
    ``distances`` is what models know before they are solved.
    """

    near: int
    seed: int = 0
    distances: DistancesAt = least_distances


class Steps(Protocol):
    """The periods that a refuter tries, one climb long (:mod:`weft.solver.period.climb`)."""

    def next(self, low: int, high: int) -> list[int]:
        """Periods between ``low``, which is refuted, and ``high``, which is open or achieved; none ends the climb."""


class Technique(Protocol):
    """What both roles share."""

    #: As reports, and ``without`` of :func:`weft.solver.period.search.find_period`, call it.
    name: ClassVar[str]

    @classmethod
    def of(cls, bracket: Bracket, task: Task) -> Self | None:
        """None if the problem has not the structure that the technique is about."""


@runtime_checkable
class Refuter(Technique, Protocol):
    """A way to prove that no steady state has a period or a shorter one.

    Two things differ from a single ``refutes(period)``. Periods come in short lists, because some techniques look at
    two at the same time, a thread each. And ``ready`` says whether the technique is worth the time at all: some know
    beforehand what a period will take.
    """

    #: Whether there is nothing finer left to try.
    exhausted: bool = False
    #: Up to which period all is refuted before the technique starts; None: what the bracket says.
    known: int | None = None

    def steps(self) -> Steps:
        """How to climb with it."""

    def refutes(self, periods: Sequence[int], time: Slice) -> list[int]:
        """Those of ``periods`` (ticks, ascending) of which it is proven that no steady state has them or shorter ones;
        of the others nothing is said."""

    def sharpen(self, time: Slice) -> bool:
        """Finer cells, larger subsets. False where there are none, or none that are worth ``time`` now."""
        return False

    def ready(self, time: Slice) -> bool:
        """Whether a period can be tried within ``time``."""
        return not self.exhausted


@runtime_checkable
class Improver(Technique, Protocol):
    """A way to find steady states that are shorter than the best one of a bracket."""

    def improve(self, bracket: Bracket, time: Slice) -> None:
        """Offer what is found to ``bracket``. Refutations on the way are told it too."""
