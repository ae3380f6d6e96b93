"""How little the waits on lanes can come to at a period: dynamic programming over devices and patterns of offsets.

On every device each lane has a block, and these blocks never overlap in any period. What counts for that are the
differences of their starts modulo the period T: a pattern. From a device to the next a lane's block moves on by what
the lane takes, and by its wait, so the patterns of one device lead to those of the next at the cost of the waits. The
least cost of each pattern follows from those of the device before; the least of all on the last device bounds what any
steady state waits, and what the memory leaves for waits
(:meth:`weft.solver.period.refuters.lane_weights.LaneWeights.room`) may be less: then the period is refuted. No part of
the devices says that on its own: each lane can wait a little less everywhere.

Starts are counted in cells of T / n ticks, from where each lane would be without any wait: a start t lies in cell
floor(n (t - r) / T). This keeps the bound valid:

* Cells never decrease along a lane, as times without waits do not. All waits of a lane come to more than its cells
  less one; where weights rise along the lane, to less than that by another cell for each unit they rise.
* The difference of two starts lies within one cell on either side of that of their cells. A pattern is only ruled out
  if two blocks overlap at every such difference, and a wait within a device is the shortest that such a difference has.

Dependencies between other devices, and blocks that are an end on one device, are left out: less is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, pairwise
from math import floor, inf
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.solver.period.params import PARAMETERS
from weft.solver.period.refuters.lane_weights import LaneWeights, Static
from weft.solver.period.structure.lanes import Level

__all__ = ["Costs", "LanePatterns"]

#: Least waits, in cells times weight, by the cells of the lanes from the second on after those of the first.
Costs = npt.NDArray[np.signedinteger[Any]]


class LanePatterns:
    """The patterns of ``lanes`` at ``period`` ticks, in ``cells`` cells."""

    def __init__(self, lanes: LaneWeights, period: int, cells: int) -> None:
        self.lanes, self.period, self.cells = lanes, period, cells
        self.count = len(lanes.along)
        self.shape = (cells,) * (self.count - 1)
        #: What waits may come to, in cells times weight.
        self.limit = floor(lanes.room(period) * cells / period) + _rounding(lanes)
        heaviest = max(weight for weights in lanes.weights for weight in weights)
        most = 2 * (self.limit + 1) + heaviest * cells
        self._dtype: type[np.signedinteger[Any]] = np.int16 if most < np.iinfo(np.int16).max else np.int32
        self._after = (np.arange(cells) - np.arange(cells)[:, None]) % cells  # of second to first
        self._told_anew = self._from_lane_1()
        self._reference = self._references()

    def _references(self) -> npt.NDArray[np.int64]:
        """Where each lane would be on each row without waits, in ticks (rows x lanes)."""
        lanes = self.lanes
        signed = np.where(lanes.along, 1, -1) * np.array(lanes.lengths, dtype=np.int64).reshape(-1, self.count)
        return np.concatenate([np.zeros((1, self.count), dtype=np.int64), np.cumsum(signed, axis=0)])

    def costs(self) -> Iterator[Costs]:
        """For each row, the least waits up to it and within it; more than ``limit`` where a pattern is ruled out. Ends
        early where all are."""
        costs: Costs = np.zeros(self.shape, dtype=self._dtype)
        for row in range(len(self.lanes.rows)):
            if row:
                costs = self._step(row, costs)
            within = self._within(row)
            if within is not None:
                costs += within
            np.copyto(costs, self.limit + 1, where=~self._allowed(row))
            np.minimum(costs, self.limit + 1, out=costs)
            if costs.min() > self.limit:
                return
            yield costs

    def share(self) -> float:
        """The least waits as a share of what there is room for; infinite if no steady state has so short a period."""
        if self.limit < 0:
            return inf
        if self.limit > PARAMETERS.lanes_no_limit:
            return 0.0
        least = [int(costs.min()) for costs in self.costs()]
        return inf if len(least) < len(self.lanes.rows) else least[-1] / max(1, self.limit)

    def _step(self, row: int, costs: Costs) -> Costs:
        weights = self.lanes.weights[row - 1]
        for lane in range(1, self.count):
            costs = _waited(costs, lane - 1, weights[lane], self.lanes.along[lane])
        told_anew = costs.ravel()[self._told_anew].reshape(self.shape)  # lane 0 after lane 1
        told_anew = _waited(told_anew, 0, weights[0], self.lanes.along[0])
        steps: Costs = told_anew.ravel()[self._told_anew].reshape(self.shape)
        return steps

    def _from_lane_1(self) -> npt.NDArray[np.intp]:
        """Where in a flat array a pattern lies if it is told from lane 1 instead of lane 0, or the other way round."""
        first, *rest = np.indices(self.shape, dtype=np.int32)
        told = ((-first) % self.cells, *((other - first) % self.cells for other in rest))
        where: npt.NDArray[np.intp] = np.ravel_multi_index(told, self.shape).ravel()
        return where

    def _least(self, row: int, source: int, target: int) -> npt.NDArray[np.int64]:
        """By how much ``target`` starts after ``source`` at least, per cell of difference; times ``cells``, modulo."""
        apart = int(self._reference[row, target] - self._reference[row, source])
        least: npt.NDArray[np.int64] = \
            ((np.arange(self.cells) - 1) * self.period + apart * self.cells) % (self.period * self.cells)
        return least

    def _spread(self, table: npt.NDArray[Any], source: int, target: int) -> npt.NDArray[Any]:
        """What depends on the cells of ``target`` after ``source``, shaped for all patterns."""
        axes = [1] * len(self.shape)
        if source == 0:
            axes[target - 1] = self.cells
            return table.reshape(axes)
        if target == 0:
            return self._spread(table[-np.arange(self.cells) % self.cells], target, source)
        axes[source - 1] = axes[target - 1] = self.cells
        pairs: npt.NDArray[Any] = table[self._after]  # [cells of source, cells of target]
        return (pairs if source < target else pairs.T).reshape(axes)

    def _allowed(self, row: int) -> npt.NDArray[np.bool_]:
        """Patterns of ``row`` in which no two blocks need overlap."""
        durations = [self.lanes.instance.durations[i] * self.cells for i in self.lanes.rows[row]]
        full = self.period * self.cells
        allowed = np.ones((1,) * len(self.shape), dtype=np.bool_)
        for i, j in combinations(range(self.count), 2):
            low = self._least(row, i, j)
            high = low + 2 * self.period  # neither is reached
            apart = (low < full - durations[j]) & (high > durations[i]) | (high > full + durations[i])
            allowed = allowed & self._spread(apart, i, j)
        return allowed

    def _within(self, row: int) -> Costs | None:
        """Waits on the dependencies within ``row``, and what its memory leaves free; None if neither counts."""
        level, static = self.lanes.levels[row], self.lanes.static[row]
        if level is None and not static:
            return None
        waits = np.zeros((1,) * len(self.shape), dtype=np.int64)
        for one in static:
            waits = waits + one.weight * self._spread(self._wait(row, one), one.source, one.target)
        if level is not None:
            waits = waits + self._free(row, level)
        within: Costs = np.minimum(waits, self.limit + 1).astype(self._dtype)
        return within

    def _free(self, row: int, level: Level) -> npt.NDArray[np.int64]:
        """What the memory of ``row`` leaves free on average, times weight."""
        scale, period = self.lanes.scale, self.period
        most = np.zeros((1,) * len(self.shape))
        for taker, workspace in level.takers:
            free = np.full((1,) * len(self.shape),
                           float((workspace - Fraction(level.workspace, period)) * scale * self.cells))
            for lane, ended, amount in level.changes:
                free = free + float(amount * scale / period) * self._until(row, taker, lane, ended, latest=amount < 0)
            most = np.maximum(most, free)
        return np.floor(most - PARAMETERS.lanes_float).astype(np.int64)

    def _until(self, row: int, taker: int, lane: int, ended: int, *, latest: bool) -> npt.NDArray[np.int64]:
        """How long after the start of ``taker`` something next happens ``ended`` ticks after that of ``lane``, at least
        (or at ``latest``), times cells: more than 0, up to the period."""
        full = self.period * self.cells
        if lane == taker:
            return np.array(full - -ended * self.cells % full)
        low = (self._least(row, taker, lane) + ended * self.cells) % full
        high = low + 2 * self.period
        until = np.where(high > full, full, high) if latest else np.where(high > full, 0, low)
        return self._spread(until, taker, lane)

    def _wait(self, row: int, static: Static) -> npt.NDArray[np.int64]:
        full = self.period * self.cells
        low = (self._least(row, static.source, static.target) - static.length * self.cells) % full
        return np.where(low + 2 * self.period > full, 0, low // self.period)


def _waited(costs: Costs, axis: int, weight: int, later: bool) -> Costs:
    """The least costs once the lane of ``axis`` has waited, which moves its cells on, or back if not ``later``."""
    cells = costs.shape[axis]
    shape = [1] * costs.ndim
    shape[axis] = cells
    price = (weight * np.arange(cells)).astype(costs.dtype).reshape(shape)
    if not later:
        costs = np.flip(costs, axis)
    paid: Costs = costs - price
    np.minimum.accumulate(paid, axis=axis, out=paid)
    np.minimum(paid, np.take(paid, [-1], axis=axis) + costs.dtype.type(weight * cells), out=paid)  # around the period
    paid += price
    return paid if later else np.flip(paid, axis)


def _rounding(lanes: LaneWeights) -> int:
    """By how much the cells of all lanes may count more than their waits, times weight, at most."""
    rounding = 0
    for lane, forth in enumerate(lanes.along):
        weights = [step[lane] for step in lanes.weights][::1 if forth else -1]
        rounding += weights[0] + sum(max(0, b - a) for a, b in pairwise(weights))
    return rounding
