"""What the waits on the lanes of a pipeline (:mod:`weft.solver.period.structure.lanes`) cost in memory, and how much
there is for them.

What a device's memory holds on average is, by Little's law, the time that micro-batches take from taker to giver, which
is durations and transfers, that are given, and the waits in between. So the waits on all lanes share what the period
leaves (:meth:`LaneWeights.room`); how little they can come to is what
:mod:`weft.solver.period.refuters.lane_wait_dp` works out.

The average is less than the capacity by what the level leaves free. When a block j that takes memory has started, the
level is at most the capacity; the average lies below that level by the sum of amount x tau / T over all takes, less
that over all that is given back, where tau in (0, T] is how much later than j's start it next happens (integrate the
level over the period from there on). That depends on nothing but differences of starts modulo T (:class:`Level`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import gcd

from weft.solver.period.params import PARAMETERS
from weft.solver.period.structure.lanes import Lanes, Level
from weft.solver.relations.min_dist import Distances, least_lifetimes
from weft.solver.ticks import Arc, TickProblem

__all__ = ["LaneWeights", "Static"]

@dataclass(frozen=True, slots=True)
class Static:
    """A dependency between the blocks of one device: from lane ``source`` to lane ``target``, ``length`` ticks long."""

    source: int
    target: int
    length: int
    weight: int


@dataclass(frozen=True)
class LaneWeights:
    """The blocks of an instance in lanes.

    ``rows[e][k]`` is the block of lane k on the e-th device of ``devices``. ``along[k]`` says whether lane k runs
    towards later rows. From row e to row e + 1 (or back) lane k takes ``lengths[e][k]`` ticks without a wait; a wait
    there counts ``weights[e][k]`` times, one on a dependency within a row as its ``weight`` says. Weights are memory in
    units of 1 / ``scale``, rounded down, of the devices whose ``levels`` are counted: ``capacity`` of all of them x
    period is to be shared, and ``least`` is taken by what is not a wait.
    """

    instance: TickProblem
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
    def of(cls, lanes: Lanes, held: int, lags: Distances) -> LaneWeights | None:
        """None if there are too many lanes, or waits on them cost the first ``held`` devices no memory.

        ``lags`` are the least distances at any period.
        """
        return _weighed(lanes, held, lags) if 2 <= len(lanes.along) <= PARAMETERS.lanes_most else None

    def room(self, period: int) -> Fraction:
        """What all waits may come to in a steady state of ``period`` ticks, in ticks times weight."""
        return (self.capacity * period - self.least) * self.scale


def _weighed(lanes: Lanes, held: int, lags: Distances) -> LaneWeights | None:
    """The lanes with the weights of what waits cost the memory of the first ``held`` devices."""
    instance, rows, between = lanes.instance, lanes.rows, lanes.between
    counted: Counter[tuple[int, int]] = Counter()
    least = capacity = 0
    for device in lanes.devices[:held]:
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
    parts = min(heaviest // gcd(*counted.values()), PARAMETERS.lanes_parts)
    weights = {pair: amount * parts // heaviest for pair, amount in counted.items()}

    def length(arc: Arc) -> int:
        return instance.durations[arc.source] + arc.lag

    steps = [[between[(i, j) if forth else (j, i)] for i, j, forth in zip(row, following, lanes.along, strict=True)]
             for row, following in pairwise(rows)]
    lane = {i: k for row in rows for k, i in enumerate(row)}
    static = tuple(tuple(Static(lane[i], lane[j], length(between[i, j]), weights[i, j])
                         for i in row for j in row if weights.get((i, j))) for row in rows)
    levels = tuple(lanes.level(row) if row < held else None for row in range(len(rows)))
    return LaneWeights(instance, lanes.devices, rows, lanes.along, tuple(tuple(map(length, step)) for step in steps),
                 tuple(tuple(weights.get((arc.source, arc.target), 0) for arc in step) for step in steps),
                 static, levels, capacity, least, Fraction(parts, heaviest))


def _longest_path(instance: TickProblem, first: int, last: int) -> list[Arc] | None:
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
