"""Periods refuted because the waits on the lanes of a pipeline would hold more memory than there is."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf
from typing import ClassVar, Self

from weft.solver.cpsat.budget import Slice
from weft.solver.period.bracket import Bracket
from weft.solver.period.climb import Doubling
from weft.solver.period.params import PARAMETERS
from weft.solver.period.refuters.lane_wait_dp import LanePatterns
from weft.solver.period.refuters.lane_weights import LaneWeights
from weft.solver.period.structure.device_order import both_ways
from weft.solver.period.structure.lanes import Lanes
from weft.solver.period.technique import Refuter, Task
from weft.solver.relations.min_dist import least_distances

__all__ = ["LaneWaits"]


class LaneWaits(Refuter):
    """Refutes periods of an instance whose blocks are lanes; ``held``: with the memory of so many devices counted.

    ``near`` says whether any period took up most of the room: else finer cells are not worth a try.
    """

    name: ClassVar[str] = "lane-waits"

    def __init__(self, held: Sequence[LaneWeights]) -> None:
        self._held = held
        self._cells = PARAMETERS.lanes_cells[len(held[0].along)]
        self._level = 0
        self.near = False

    @classmethod
    def of(cls, bracket: Bracket, task: Task) -> Self | None:
        """None if the blocks are no lanes, or waits on them cost no memory."""
        distances = least_distances(bracket.instance, ceil(bracket.best.period))
        if distances is None:
            raise AssertionError("least distances refute a period that was achieved")
        lanes = Lanes.of(bracket.instance, both_ways(bracket.instance)[0])
        if lanes is None:
            return None
        held = [weights for count in PARAMETERS.lanes_held
                if (weights := LaneWeights.of(lanes, count, distances)) is not None]
        return cls(held) if held else None

    def steps(self) -> Doubling:
        """Down to a tick: a period takes little time."""
        return Doubling()

    def refutes(self, periods: Sequence[int], time: Slice) -> list[int]:
        """Those whose least waits do not fit, as far as the present cells can tell."""
        return [period for period in periods if self._least_share(period, time) == inf]

    def sharpen(self, time: Slice) -> bool:
        """More cells, once."""
        self._level += 1
        self.exhausted = not self.near or self._level >= len(self._cells)
        return not self.exhausted

    def _least_share(self, period: int, time: Slice) -> float:
        """The least waits at ``period`` ticks as a share of the room; infinite if it is refuted."""
        budget, cells = time.budget, self._cells[self._level]
        found = budget.side_by_side(lambda weights: LanePatterns(weights, period, cells).share(), self._held)
        if found is None:
            return 0.0
        least = max(found)
        devices, lanes = len(self._held[0].rows), len(self._held[0].along)
        budget.deterministic_used += len(self._held) * devices * cells ** (lanes - 1) / PARAMETERS.lanes_second
        self.near = self.near or least > PARAMETERS.lanes_near
        return least
