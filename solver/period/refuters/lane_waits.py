"""Periods refuted because the waits on the lanes of a pipeline would hold more memory than there is."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf

from weft.solver.cpsat.solve import Budget
from weft.solver.period.refuters.lane_wait_dp import LanePatterns
from weft.solver.period.refuters.lane_weights import Lanes
from weft.solver.period.structure.device_order import both_ways
from weft.solver.period.structure.lanes import Tracks
from weft.solver.relations.min_dist import closure
from weft.solver.ticks import TickProblem

__all__ = ["LaneBound"]

#: So many devices' memory is looked at, once of the first alone and once of all together.
_HELD = (1, 4)
#: Cells of a period by number of lanes, few and then more: patterns are cells ** (lanes - 1).
_CELLS = {2: (256, 1024), 3: (128, 256), 4: (48, 96)}
#: Where waits come to less than this share of the room, finer cells will not refute the period either.
_NEAR = 0.9
#: Patterns, over all devices, that count as a second of deterministic time.
_SECOND = 50e6


class LaneBound:
    """Refutes periods of an instance of which ``held`` are lanes, each with the memory of other devices counted.

    ``cells`` are worth trying one after the other, as long as the last ones were ``near``.
    """

    def __init__(self, held: Sequence[Lanes]) -> None:
        self._held = held
        self.cells = _CELLS[len(held[0].along)]
        self.near = False

    @classmethod
    def of(cls, instance: TickProblem, period: int) -> LaneBound | None:
        """None if the blocks are no lanes. ``period`` is any that works, in ticks."""
        lags = closure(instance, period)
        if lags is None:
            raise AssertionError("the closure refutes a period that was achieved")
        tracks = Tracks.of(instance, both_ways(instance)[0])
        if tracks is None:
            return None
        held = [lanes for count in _HELD if (lanes := Lanes.of(tracks, count, lags)) is not None]
        return cls(held) if held else None

    def refutes(self, period: int, cells: int, budget: Budget) -> bool:
        """Whether there is no steady state of ``period`` ticks, as far as so many ``cells`` can tell."""
        with ThreadPoolExecutor(budget.workers) as threads:
            try:
                least = max(threads.map(lambda lanes: LanePatterns(lanes, period, cells).share(), self._held))
            except KeyboardInterrupt:
                budget.interrupted = True
                return False
        rows, lanes = len(self._held[0].rows), len(self._held[0].along)
        budget.deterministic_used += len(self._held) * rows * cells ** (lanes - 1) / _SECOND
        self.near = self.near or least > _NEAR
        return least == inf
