"""The sizes of the micro-batches of all stages of several cuts, best first.

A *choice* is a cut with a set of sizes for each stage. Its bound (:mod:`weft.solver.placement.joint.step_bound`) holds
for all that can be chosen from it. The choice with the least bound comes first: the stage that the bound hangs on gets
one size less uncertain, until every stage has one. So choices come out by rising bound, and when the search stops, the
next bound holds for all that have not come out. Of choices that differ by an exchange of interchangeable paths of
stages one comes out: that in which a path's sizes are not after its twin's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weft.solver.control.clock import checkpoint
from weft.solver.placement.joint.cuts import SizedCut
from weft.solver.placement.joint.step_bound import Open, open_sizes, stage_bounds
from weft.solver.portfolio import Parts


@dataclass(frozen=True)
class SizeChoice:
    """One size for each stage of cut number ``cut``; no schedule of it is shorter than ``bound``."""

    cut: int
    sizes: tuple[int, ...]
    bound: float


class SizeSearch:
    """Choices of ``cuts`` by rising bound. ``steps``: sets of sizes explored."""

    def __init__(self, cuts: Sequence[SizedCut]) -> None:
        self.cuts = cuts
        self.steps = 0
        self._parts: Parts[tuple[int, Open]] = Parts()
        for number, cut in enumerate(cuts):
            self._push(number, open_sizes(cut))

    @property
    def bound(self) -> float:
        """A lower bound on the schedules of all choices still to come."""
        return self._parts.bound

    def bound_of(self, cut: int) -> float:
        """The same for one cut's choices."""
        return min((bound for bound, (number, _) in self._parts if number == cut), default=math.inf)

    def below(self, most: float, steps: int) -> Iterator[SizeChoice]:
        """The next choices with bounds below ``most``, until this many more sets of sizes have been explored."""
        until = self.steps + steps
        while self.bound < most and self.steps < until:
            checkpoint()
            bound, (number, sizes) = self.bound, self._parts.first
            if all(len(allowed) == 1 for allowed in sizes):
                yield SizeChoice(number, tuple(size for size, in sizes), bound)  # out once somebody asks for the next
                self._parts.pop()
                continue
            with self._parts.divided():
                self._branch(number, sizes, bound)

    def drop(self, most: float) -> None:
        """Remove all choices not shorter than ``most``."""
        self._parts.drop(most)

    def _push(self, number: int, sizes: Open, least: float = 0.0) -> None:
        self.steps += 1
        if not all(sizes) or _is_told_twice(self.cuts[number], sizes):
            return
        bounds = stage_bounds(self.cuts[number], sizes)
        bound = max(least, max(min(by_size.values()) for by_size in bounds))
        if bound < math.inf:
            unsettled = sum(len(allowed) > 1 for allowed in sizes)
            self._parts.push(bound, (number, tuple(
                tuple(size for size in allowed if by_size[size] < math.inf)
                for allowed, by_size in zip(sizes, bounds, strict=True))), unsettled)

    def _branch(self, number: int, sizes: Open, bound: float) -> None:
        """One child for each size of an open stage: the one whose sizes' bounds differ most."""
        bounds = stage_bounds(self.cuts[number], sizes)
        stage = max((s for s, allowed in enumerate(sizes) if len(allowed) > 1),
                    key=lambda s: (sorted(bounds[s].values())[1], -s))
        for size in sizes[stage]:
            self._push(number, (*sizes[:stage], (size,), *sizes[stage + 1:]), max(bound, bounds[stage][size]))


def _is_told_twice(cut: SizedCut, sizes: Open) -> bool:
    """Whether, however the open sizes are settled, some path's sizes are after those of its twin."""
    for one, other in cut.twins:
        for first, second in zip(one, other, strict=True):
            if len(sizes[first]) > 1 or len(sizes[second]) > 1 or sizes[first] < sizes[second]:
                break
            if sizes[first] > sizes[second]:
                return True
    return False
