"""V shapes of two chunks: pipelines that run along the devices and back, twice.

In a V of two chunks every device has four blocks, and each micro-batch comes by four times: on its way in, turned round
at the innermost device, on its way out, turned round at the outermost, and so once more. Four lanes
(:mod:`weft.solver.period.structure.lanes`) that are one chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from weft.solver.period.structure.device_order import both_ways
from weft.solver.period.structure.lanes import Lanes, Level
from weft.solver.ticks import TickProblem

__all__ = ["Held", "V"]


@dataclass(frozen=True, slots=True)
class Held:
    """What the blocks of a device do to its memory: ``takers`` and ``changes`` as in
    :class:`weft.solver.period.structure.lanes.Level`.

    Lane 0 takes ``kept`` > 0, which lane 3 gives back, and lane 1 ``inner``, which lane 2 gives back.
    """

    takers: tuple[tuple[int, int], ...]
    changes: tuple[tuple[int, int, int], ...]
    kept: int
    inner: int

    @classmethod
    def of(cls, level: Level | None, lanes: Sequence[int]) -> Held | None:
        """None if the lanes, which ``level`` calls ``lanes``, do something else."""
        if level is None:
            return None
        name = {its: lane for lane, its in enumerate(lanes)}
        changes = tuple((name[its], ended, amount) for its, ended, amount in level.changes)
        kept, inner, *given = (sum(amount for one, _, amount in changes if one == lane) for lane in range(4))
        if kept <= 0 or inner < 0 or given != [-inner, -kept]:
            return None
        return cls(tuple((name[its], workspace) for its, workspace in level.takers), changes, kept, inner)


@dataclass(frozen=True)
class V:
    """The blocks of ``instance`` as a V of two chunks.

    ``rows[e][k]`` is the block of lane k on the e-th device, outermost first; the chain is lane 0 inwards, lane 1
    outwards, 2 inwards, 3 outwards. ``times[e][k]`` is when it starts, in ticks after the first block, without waits.
    """

    instance: TickProblem
    rows: tuple[tuple[int, ...], ...]
    times: tuple[tuple[int, ...], ...]
    levels: tuple[Held, ...]
    capacities: tuple[int, ...]

    @classmethod
    def of(cls, instance: TickProblem) -> V | None:
        """None if the blocks form no such V, or some device's memory is unlimited."""
        lanes = Lanes.of(instance, both_ways(instance)[0])
        if lanes is None or len(lanes.along) != 4:
            return None
        place = {i: place for place, i in enumerate(instance.problem.topological_order)}
        order = sorted(range(4), key=lambda lane: place[lanes.rows[0][lane]])
        inwards = [lanes.along[lane] for lane in order]
        outermost_first = 1 if inwards[0] else -1
        if inwards not in ([True, False, True, False], [False, True, False, True]):
            return None
        rows = tuple(tuple(row[lane] for lane in order) for row in lanes.rows[::outermost_first])
        times = _times(instance, rows, lanes)
        levels = [Held.of(lanes.level(row), order) for row in range(len(rows))][::outermost_first]
        capacities = [instance.capacity[device] for device in lanes.devices[::outermost_first]]
        if times is None or None in levels or None in capacities:
            return None
        return cls(instance, rows, times, tuple(level for level in levels if level is not None),
                   tuple(capacity for capacity in capacities if capacity is not None))


def _times(instance: TickProblem, rows: Sequence[Sequence[int]], lanes: Lanes) -> tuple[tuple[int, ...], ...] | None:
    """When the blocks of ``rows`` start without waits; None if they are no chain."""
    inwards = range(len(rows))
    chain = [rows[row][lane] for lane in range(4) for row in (inwards if lane % 2 == 0 else reversed(inwards))]
    starts = {chain[0]: 0}
    for i, j in pairwise(chain):
        arc = lanes.between.get((i, j))
        if arc is None:
            return None
        starts[j] = starts[i] + instance.durations[i] + arc.lag
    return tuple(tuple(starts[i] for i in row) for row in rows)
