"""Pipelines as lanes: every device hands each of its blocks' micro-batches on to the next device, or gets them from it.

In V shapes, loops and all that is built from them, a device's blocks are each the continuation of one block on the
device before: a few lanes run along the devices, some forth, some back. What a device's memory holds on average is, by
Little's law, the time that micro-batches take from taker to giver, which is durations and transfers, that are given,
and the waits in between. So the waits on all lanes share what the period leaves (:meth:`Lanes.room`); how little they
can come to is what :mod:`solver.lane_waits` works out.

The average is less than the capacity by what the level leaves free. When a block j that takes memory has started, the
level is at most the capacity; the average lies below that level by the sum of amount x tau / T over all takes, less
that over all that is given back, where tau in (0, T] is how much later than j's start it next happens (integrate the
level over the period from there on). That depends on nothing but differences of starts modulo T (:class:`Level`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import gcd

from solver.closure import Lags, least_lifetimes
from solver.instance import Arc, Instance

__all__ = ["Lanes", "Level", "Static"]

#: More lanes than that have too many patterns of offsets; and of how many small parts weights are made up at most.
_MOST_LANES, _PARTS_OF_WEIGHT = 4, 64


@dataclass(frozen=True, slots=True)
class Static:
    """A dependency between the blocks of one device: from lane ``source`` to lane ``target``, ``length`` ticks long."""

    source: int
    target: int
    length: int
    weight: int


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
    towards later rows. From row e to row e + 1 (or back) lane k takes ``lengths[e][k]`` ticks without a wait; a wait
    there counts ``weights[e][k]`` times, one on a dependency within a row as its ``weight`` says. Weights are memory in
    units of 1 / ``scale``, rounded down, of the devices whose ``levels`` are counted: ``capacity`` of all of them x
    period is to be shared, and ``least`` is taken by what is not a wait.
    """

    instance: Instance
    devices: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]
    along: tuple[bool, ...]
    lengths: tuple[tuple[int, ...], ...]
    weights: tuple[tuple[int, ...], ...]
    static: tuple[tuple[Static, ...], ...]
    levels: tuple[Level | None, ...]
    capacity: int
    least: int
    scale: Fraction

    @classmethod
    def of(cls, instance: Instance, devices: Sequence[int], held: Sequence[int], lags: Lags) -> Lanes | None:
        """The lanes over ``devices`` in that order; None if the blocks are no lanes, or too many.

        Waits are weighed by what they cost the memory of the devices ``held``. ``lags`` is the closure at any period.
        """
        chained = _chained(instance)
        rows = [tuple(i for i in instance.blocks_on[device] if i in chained) for device in devices]
        count = len(rows[0])
        if not 2 <= count <= _MOST_LANES or any(len(row) != count for row in rows):
            return None
        # Of several dependencies between two blocks the longest counts, as on the paths that waits are told from.
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
        if along is None:
            return None
        return _weighed(instance, tuple(devices), tuple(rows), tuple(along), between, held, lags)

    def room(self, period: int) -> Fraction:
        """What all waits may come to in a steady state of ``period`` ticks, in ticks times weight."""
        return (self.capacity * period - self.least) * self.scale


def _chained(instance: Instance) -> set[int]:
    """The blocks on one device that are more than an end on it: not after one block of it and before none."""
    parents = _parents(instance)
    return {i for i in instance.blocks if len(instance.problem.blocks[i].devices) == 1 and i not in parents}


def _parents(instance: Instance) -> dict[int, Arc]:
    """For the blocks that are an end on their device, the dependency on the only block before them."""
    runs_on = [block.devices for block in instance.problem.blocks]
    into: dict[int, list[Arc]] = {}
    for arc in instance.arcs:
        into.setdefault(arc.target, []).append(arc)
    feeding = {arc.source for arc in instance.arcs}
    return {i: arcs[0] for i, arcs in into.items()
            if i not in feeding and len(arcs) == 1 and not arcs[0].distance and len(runs_on[i]) == 1
            and runs_on[arcs[0].source] == runs_on[i]}


def _continued(row: Sequence[int], following: Sequence[int],
               between: dict[tuple[int, int], Arc]) -> list[tuple[int, bool]] | None:
    """For each block of ``row`` the one of ``following`` that it exchanges with, and whether it hands on to that."""
    found = []
    for i in row:
        partners = [(j, (i, j) in between) for j in following if (i, j) in between or (j, i) in between]
        if len(partners) != 1:
            return None
        found += partners
    return found if len({j for j, _ in found}) == len(row) else None


def _weighed(instance: Instance, devices: tuple[int, ...], rows: tuple[tuple[int, ...], ...], along: tuple[bool, ...],
             between: dict[tuple[int, int], Arc], held: Sequence[int], lags: Lags) -> Lanes | None:
    """The lanes with the weights of what waits cost the memory of the devices ``held``."""
    counted: Counter[tuple[int, int]] = Counter()
    least = capacity = 0
    for device in held:
        lifetimes, room = least_lifetimes(instance, device, lags), instance.capacity[device]
        if lifetimes is None or room is None:
            return None
        capacity += room
        least += lifetimes.workspace
        for taker, giver, amount, _ in lifetimes.held:
            path = _longest_path(instance, taker, giver)
            if path is None:
                return None
            least += amount * instance.durations[giver]
            for arc in path:
                least += amount * (instance.durations[arc.source] + arc.lag)
                counted[arc.source, arc.target] += amount
    heaviest = max(counted.values(), default=0)
    if not heaviest:
        return None
    # Weights in small whole numbers; rounded down, they count less of the waits, and so does what these may come to.
    parts = min(heaviest // gcd(*counted.values()), _PARTS_OF_WEIGHT)
    weights = {pair: amount * parts // heaviest for pair, amount in counted.items()}

    def length(arc: Arc) -> int:
        return instance.durations[arc.source] + arc.lag

    steps = [[between[(i, j) if forth else (j, i)] for i, j, forth in zip(row, following, along, strict=True)]
             for row, following in pairwise(rows)]
    lane = {i: k for row in rows for k, i in enumerate(row)}
    static = tuple(tuple(Static(lane[i], lane[j], length(between[i, j]), weights[i, j])
                         for i in row for j in row if weights.get((i, j))) for row in rows)
    levels = tuple(_level(instance, device, lane) if device in held else None for device in devices)
    return Lanes(instance, devices, rows, along, tuple(tuple(map(length, step)) for step in steps),
                 tuple(tuple(weights.get((arc.source, arc.target), 0) for arc in step) for step in steps),
                 static, levels, capacity, least, Fraction(parts, heaviest))


def _level(instance: Instance, device: int, lane: dict[int, int]) -> Level | None:
    """What the blocks of ``device`` do to its memory; None if some of them are neither in a lane nor at an end."""
    take, change = instance.take[device], instance.change[device]
    parents = _parents(instance)
    changes = []
    for i, amount in change.items():
        ended = instance.durations[i] if amount < 0 else 0
        if i in lane:
            changes.append((lane[i], ended, amount))
        elif i in parents and parents[i].source in lane and amount <= 0:
            # If it waits, what it gives back is held longer by as much as the level falls later, or by a period more.
            parent = parents[i].source
            changes.append((lane[parent], instance.durations[parent] + parents[i].lag + ended, amount))
        elif amount:
            return None
    takers = tuple((lane[i], take[i] - max(change[i], 0)) for i in take if take[i] and i in lane)
    workspace = sum((take[i] - max(change[i], 0)) * instance.durations[i] for i in take)
    return Level(takers, tuple(one for one in changes if one[2]), workspace)


def _longest_path(instance: Instance, first: int, last: int) -> list[Arc] | None:
    """The dependencies of one micro-batch on a longest path from ``first`` to ``last``; None if there is no path."""
    into: dict[int, list[Arc]] = {}
    for arc in instance.arcs:
        if not arc.distance:
            into.setdefault(arc.target, []).append(arc)
    reached: dict[int, tuple[int, Arc | None]] = {first: (0, None)}
    for j in instance.problem.topological_order:
        for arc in into.get(j, []):
            if arc.source in reached:
                length = reached[arc.source][0] + instance.durations[arc.source] + arc.lag
                if j not in reached or length > reached[j][0]:
                    reached[j] = length, arc
    if last not in reached:
        return None
    path: list[Arc] = []
    at = last
    while (arc_in := reached[at][1]) is not None:
        path.append(arc_in)
        at = arc_in.source
    return path[::-1]
