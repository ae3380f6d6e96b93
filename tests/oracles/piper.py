"""Piper's dynamic program over all downsets, as published (Tarnawski et al., NeurIPS 2021), as a rival in search time.

For every downset I of the graph, every smaller downset J, and every number of stages and devices that hold what is not
in I: the stage I without J on each number of devices. Nothing is left out for exceeding a limit, and branches that
differ by their names only are told apart, which is what makes it exponential in the number of branches: b branches of n
operators have (n + 1)^b downsets and ((n + 1)(n + 2)/2)^b pairs of them. It decides replication too, not tensor
parallelism. Its own program keeps the number of devices behind a stage, for what the stage holds; ours the number of
stages, as all of :mod:`weft.solver.placement` does (a stage's devices share each micro-batch).

All J of one I are looked at together, in arrays: the rate is that of compiled code.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from weft.solver.cpsat.budget import Budget
from weft.solver.placement.dag.levels.ideals import Ideals
from weft.solver.placement.groups import Groups

Array = NDArray[np.float64]


@dataclass(frozen=True)
class PiperSolved:
    """``value``: the least largest load (infinite: nothing fits), ``None`` where the time ended first. ``downsets`` of
    the graph, ``pairs`` of nested ones that were looked at, and CPU seconds."""

    value: float | None
    downsets: int
    pairs: int
    seconds: float


def piper(groups: Groups, seconds: float) -> PiperSolved:
    """The least largest load of stages in a row, within so many CPU seconds, on devices of the only kind there is."""
    return _Piper(groups).run(seconds)


class _Piper:
    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        self.kind, = (k for k, kind in enumerate(groups.problem.kinds) if kind.count)
        self.device = groups.problem.kinds[self.kind]
        ideals = Ideals(groups, Budget(), limit=math.inf, in_a_row=True, twins=False, max_cuts=0)
        self.paths, self.followers = ideals.paths, ideals.followers
        self.shape = tuple(len(path) + 1 for path in self.paths)
        self.degrees = [(r, times[:, self.kind]) for r, times in groups.degrees if r <= self.device.count]
        place = {group: (p, i) for p, path in enumerate(self.paths) for i, group in enumerate(path)}
        self.nets = [([place[g] for g in net.groups], net.cost * self.device.transfer_factor) for net in groups.nets]
        # What each path adds, before each of its places.
        self.sums = [self._before(times) for _, times in self.degrees]
        self.resident, self.held = self._before(groups.resident), self._before(groups.per_micro_batch)
        self.closed = self._downsets()

    def _before(self, amounts: Array) -> list[Array]:
        return [np.concatenate([[0.0], amounts[list(path)].cumsum()]) for path in self.paths]

    def _downsets(self) -> NDArray[np.bool_]:
        """Which numbers of groups of the paths are downsets: a path begins only where all before it are whole."""
        closed = np.ones(self.shape, bool)
        at = np.indices(self.shape, sparse=True)
        for path, followers in enumerate(self.followers):
            for follower in followers:
                closed &= (at[follower] == 0) | (at[path] == self.shape[path] - 1)
        return closed.ravel()

    def run(self, seconds: float) -> PiperSolved:
        began = time.process_time()
        stages, devices = min(self.groups.count, self.device.count), self.device.count
        size = len(self.closed)
        table = np.full((stages + 1, devices + 1, size), np.inf)
        table[0, 0, size - 1] = 0.0
        pairs = 0
        strides = np.array([math.prod(self.shape[p + 1:]) for p in range(len(self.shape))])
        for number in np.flatnonzero(self.closed)[::-1].tolist():
            if time.process_time() - began > seconds:
                return PiperSolved(None, int(self.closed.sum()), pairs, time.process_time() - began)
            ideal = np.unravel_index(number, self.shape)
            smaller = _outer([np.arange(count + 1) * stride for count, stride in zip(ideal, strides, strict=True)])
            chosen = np.flatnonzero(self.closed[smaller])[:-1]  # the last is the ideal itself
            pairs += len(chosen)
            self._extend(table, number, [int(count) for count in ideal], smaller[chosen], chosen)
        value = float(table[:, :, 0].min())
        return PiperSolved(value, int(self.closed.sum()), pairs, time.process_time() - began)

    def _extend(self, table: Array, number: int, ideal: Sequence[int], smaller: NDArray[np.int64],
                chosen: NDArray[np.int64]) -> None:
        """All stages that end with ``ideal`` put before what is already behind it."""
        cut = self._cut(ideal)[chosen]
        resident, held = (_outer([sums[i] - sums[:i + 1] for sums, i in zip(of, ideal, strict=True)])[chosen]
                          for of in (self.resident, self.held))
        loads = [_outer([path[i] - path[:i + 1] for path, i in zip(sums, ideal, strict=True)])[chosen] + cut / r
                 for (r, _), sums in zip(self.degrees, self.sums, strict=True)]
        behind = table[:, :, number]
        for stages, used in np.argwhere(np.isfinite(behind[:-1])).tolist():
            in_flight = self.groups.problem.in_flight(stages + 1)
            for (r, _), load in zip(self.degrees, loads, strict=True):
                if used + r > self.device.count:
                    break
                value = np.maximum(load, behind[stages, used])
                if self.device.memory is not None:
                    value[resident + in_flight * held / r > self.device.memory * (1 + 1e-9)] = np.inf
                row = table[stages + 1, used + r]
                row[smaller] = np.minimum(row[smaller], value)

    def _cut(self, ideal: Sequence[int]) -> Array:
        """What the nets cost that each stage cuts, for all J at once."""
        shape = [count + 1 for count in ideal]
        total = np.zeros(shape)
        start = np.indices(shape, sparse=True)
        for places, cost in self.nets:
            inside = [start[path] <= i if i < ideal[path] else np.zeros([1] * len(shape), bool) for path, i in places]
            total += cost * (reduce(np.logical_or, inside) & ~reduce(np.logical_and, inside))
        return total.ravel()


def _outer(rows: Sequence[NDArray[np.generic]]) -> NDArray:  # type: ignore[type-arg]
    """The sums of one entry of each row, for all choices, the last row's entries side by side."""
    return reduce(lambda total, row: (total[:, np.newaxis] + row[np.newaxis, :]).ravel(), rows)


def pairs_of_branches(branches: Sequence[int], tail: int) -> tuple[int, int]:
    """Downsets, and pairs of nested unlike ones, of branches of so many operators that a row of ``tail`` follows."""
    before = math.prod(n + 1 for n in branches)
    nested = math.prod((n + 1) * (n + 2) // 2 for n in branches) - before
    return before + tail, nested + tail * before + tail * (tail - 1) // 2
