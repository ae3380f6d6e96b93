"""Pipelines whose devices each hand every block's micro-batches on to the next device, or get them from it.

In V shapes, loops and all that is built from them, a device's blocks are each the continuation of one block on the
device before: a few lanes run along the devices, some forth, some back. What bounds the period of such pipelines looks
at one device after the other (:mod:`weft.solver.period.refuters.lane_weights`,
:mod:`weft.solver.period.structure.v_shape`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.solver.ticks import Arc, TickProblem

__all__ = ["Level", "Lanes"]


@dataclass(frozen=True, slots=True)
class Level:
    """What happens to the memory of a device: ``changes`` are (lane, ticks after the start of its block, amount).

    ``takers`` are the lanes of the blocks that take some, with their workspace, and ``workspace`` is amount x ticks of
    all workspace.
    """

    takers: tuple[tuple[int, int], ...]
    changes: tuple[tuple[int, int, int], ...]
    workspace: int


@dataclass(frozen=True)
class Lanes:
    """The blocks of an instance in lanes.

    ``rows[e][k]`` is the block of lane k on the e-th device of ``devices``. ``along[k]`` says whether lane k runs
    towards later rows. ``between`` has the dependency from one block to another of the same micro-batch, the longest of
    several; ``parents``, for the blocks that are an end on their device, the one on the only block before them.
    """

    instance: TickProblem
    devices: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]
    along: tuple[bool, ...]
    between: Mapping[tuple[int, int], Arc]
    parents: Mapping[int, Arc]

    @classmethod
    def of(cls, instance: TickProblem, devices: Sequence[int]) -> Lanes | None:
        """The lanes over ``devices`` in that order; None if the blocks are no lanes."""
        parents = _parents(instance)
        chained = {i for i in instance.blocks
                   if len(instance.problem.blocks[i].devices) == 1 and i not in parents}
        rows = [tuple(i for i in instance.blocks_on[device] if i in chained) for device in devices]
        if any(len(row) != len(rows[0]) for row in rows):
            return None
        between = {(arc.source, arc.target): arc for arc in sorted(instance.arcs, key=lambda arc: arc.lag)
                   if not arc.distance}
        along: list[bool] | None = None
        for e in range(1, len(rows)):
            continued = _continued(rows[e - 1], rows[e], between)
            if continued is None:
                return None
            rows[e] = tuple(block for block, _ in continued)
            directions = [forth for _, forth in continued]
            if along is None:
                along = directions
            if directions != along:
                return None
        return None if along is None else cls(instance, tuple(devices), tuple(rows), tuple(along), between, parents)

    def level(self, row: int) -> Level | None:
        """The memory of a device; None if some of its blocks are neither in a lane nor at an end."""
        device = self.devices[row]
        lane = {i: k for k, i in enumerate(self.rows[row])}
        take, change = self.instance.take[device], self.instance.change[device]
        changes = []
        for i, amount in change.items():
            ended = self.instance.durations[i] if amount < 0 else 0
            if i in lane:
                changes.append((lane[i], ended, amount))
            elif i in self.parents and self.parents[i].source in lane and amount <= 0:
                # If it waits, what it gives back is held longer by as much as the level falls later, or by a period
                # more.
                parent = self.parents[i].source
                changes.append((lane[parent], self.instance.durations[parent] + self.parents[i].lag + ended, amount))
            elif amount:
                return None
        takers = tuple((lane[i], take[i] - max(change[i], 0)) for i in take if take[i] and i in lane)
        workspace = sum((take[i] - max(change[i], 0)) * self.instance.durations[i] for i in take)
        return Level(takers, tuple(one for one in changes if one[2]), workspace)


def _parents(instance: TickProblem) -> dict[int, Arc]:
    """Of the blocks that are an end on their device, after one block of it and before none, the dependency on that."""
    runs_on = [block.devices for block in instance.problem.blocks]
    into: dict[int, list[Arc]] = {}
    for arc in instance.arcs:
        into.setdefault(arc.target, []).append(arc)
    feeding = {arc.source for arc in instance.arcs}
    return {i: arcs[0] for i, arcs in into.items()
            if i not in feeding and len(arcs) == 1 and not arcs[0].distance and len(runs_on[i]) == 1
            and runs_on[arcs[0].source] == runs_on[i]}


def _continued(row: Sequence[int], following: Sequence[int],
               between: Mapping[tuple[int, int], Arc]) -> list[tuple[int, bool]] | None:
    """For each block of ``row`` the one of ``following`` that it exchanges with, and whether it hands on to that."""
    found = []
    for i in row:
        partners = [(j, (i, j) in between) for j in following if (i, j) in between or (j, i) in between]
        if len(partners) != 1:
            return None
        found += partners
    return found if len({j for j, _ in found}) == len(row) else None
