"""V shapes of two chunks: pipelines that run along the devices and back, twice.

In a V of two chunks every device has four blocks, and each micro-batch passes four times: on its way in, turned round
at the innermost device, on its way out, turned round at the outermost, and so once more. Four lanes that are one chain.

This module also finds the order in which a pipeline runs through its devices, and pipelines whose devices each send
every block's micro-batches to the next device, or receive them from it.

In V shapes, loops and everything built from them, each block of a device is the continuation of one block on the device
before: a few lanes run along the devices, some forth, some back. The bound on the period of such pipelines considers
one device after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from weft.solver.ticks import Arc, TickProblem


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """The changes that the blocks of a device make to its memory: ``takers`` and ``changes`` as in
    :class:`weft.solver.period.structure.v_shape.Level`.

    Lane 0 takes ``kept`` > 0, which lane 3 gives back, and lane 1 ``inner``, which lane 2 gives back.
    """

    takers: tuple[tuple[int, int], ...]
    changes: tuple[tuple[int, int, int], ...]
    kept: int
    inner: int

    @classmethod
    def of(cls, level: Level | None, lanes: Sequence[int]) -> HeldMemory | None:
        """None if the lanes, which ``level`` calls ``lanes``, change memory in another way."""
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
    outwards, 2 inwards, 3 outwards. ``times[e][k]`` is its start, in ticks after the first block, without waits.
    """

    instance: TickProblem
    rows: tuple[tuple[int, ...], ...]
    times: tuple[tuple[int, ...], ...]
    levels: tuple[HeldMemory, ...]
    capacities: tuple[int, ...]

    @classmethod
    def of(cls, instance: TickProblem) -> V | None:
        """None if the blocks are not such a V, or some device's memory is unlimited."""
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
        levels = [HeldMemory.of(lanes.level(row), order) for row in range(len(rows))][::outermost_first]
        capacities = [instance.capacity[device] for device in lanes.devices[::outermost_first]]
        if times is None or None in levels or None in capacities:
            return None
        return cls(instance, rows, times, tuple(level for level in levels if level is not None),
                   tuple(capacity for capacity in capacities if capacity is not None))


def _times(instance: TickProblem, rows: Sequence[Sequence[int]], lanes: Lanes) -> tuple[tuple[int, ...], ...] | None:
    """The starts of the blocks of ``rows`` without waits; None if they are not a chain."""
    inwards = range(len(rows))
    chain = [rows[row][lane] for lane in range(4) for row in (inwards if lane % 2 == 0 else reversed(inwards))]
    starts = {chain[0]: 0}
    for i, j in pairwise(chain):
        arc = lanes.between.get((i, j))
        if arc is None:
            return None
        starts[j] = starts[i] + instance.durations[i] + arc.lag
    return tuple(tuple(starts[i] for i in row) for row in rows)


def both_ways(instance: TickProblem) -> list[list[int]]:
    """The devices from the one where micro-batches enter, and from the one furthest from it."""
    first = next(device for device, on in enumerate(instance.blocks_on)
                 if instance.problem.topological_order[0] in on)
    forth = _outward(instance, first)
    return [forth, _outward(instance, forth[-1])]


def _outward(instance: TickProblem, first: int) -> list[int]:
    """All devices from ``first`` on, each the one that exchanges most with those before it."""
    count = len(instance.capacity)
    runs_on = [block.devices for block in instance.problem.blocks]
    exchanged = np.zeros((count, count), dtype=np.int64)
    for arc in instance.arcs:
        if len(runs_on[arc.source]) == len(runs_on[arc.target]) == 1:  # blocks on all devices do not distinguish any
            (a,), (b,) = runs_on[arc.source], runs_on[arc.target]
            exchanged[a, b] += 1
            exchanged[b, a] += 1
    order, with_placed = [first], exchanged[first].copy()
    left = set(range(count)) - {first}
    while left:
        order.append(min(left, key=lambda device: (-with_placed[device], abs(device - order[-1]), device)))
        left.remove(order[-1])
        with_placed += exchanged[order[-1]]
    return order


@dataclass(frozen=True, slots=True)
class Level:
    """The changes of a device's memory: ``changes`` are (lane, ticks after the start of its block, amount).

    ``takers`` are the lanes of the blocks that take memory, with their workspace.
    """

    takers: tuple[tuple[int, int], ...]
    changes: tuple[tuple[int, int, int], ...]


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
        """The lanes over ``devices`` in that order; None if the blocks are not lanes."""
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
                # If it waits, the memory it gives back is occupied longer by as much as the level falls later, or by a
                # period more.
                parent = self.parents[i].source
                changes.append((lane[parent], self.instance.durations[parent] + self.parents[i].lag + ended, amount))
            elif amount:
                return None
        takers = tuple((lane[i], take[i] - max(change[i], 0)) for i in take if take[i] and i in lane)
        return Level(takers, tuple(one for one in changes if one[2]))


def _parents(instance: TickProblem) -> dict[int, Arc]:
    """The dependency of each block that is an end on its device, after one block of it and before none, on that
    block."""
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
    """For each block of ``row`` the block of ``following`` that it exchanges with, and whether it sends to that."""
    found = []
    for i in row:
        partners = [(j, (i, j) in between) for j in following if (i, j) in between or (j, i) in between]
        if len(partners) != 1:
            return None
        found += partners
    return found if len({j for j, _ in found}) == len(row) else None
