"""Periodic list scheduling: a steady state built block after block, if no known schedule has one.

Every block takes the first time at which its device is free in all periods (a modulo reservation table: Rau, "Iterative
modulo scheduling", MICRO 1994). Then blocks move as late, and as early, as their neighbours and the table allow,
repeatedly, which shortens lifetimes in memory (justification: Valls, Ballestin and Quintanilla, "Justification and
RCPSP", EJOR 2005; for lifetimes in modulo schedules: Llosa et al., "Swing modulo scheduling", PACT 1996), until the
memory suffices or the period has to grow. A period takes about a millisecond for a hundred blocks; there are 70 of them
from one to its double.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import ClassVar, Self

from weft.solver.cpsat.budget import Slice
from weft.solver.period.bracket import Bracket
from weft.solver.period.params import PARAMETERS
from weft.solver.period.periodic import Periodic, fits_pools, retime, ring_of
from weft.solver.period.technique import Improver, Task
from weft.solver.ticks import TickProblem


class ListSchedule(Improver):
    """One run from the least open period, before any other technique."""

    name: ClassVar[str] = "list-schedule"

    def __init__(self, near: int) -> None:
        self.near = near

    @classmethod
    def of(cls, bracket: Bracket, task: Task) -> Self | None:
        """None if there are links."""
        return None if any(arc.link is not None for arc in bracket.instance.arcs) else cls(task.near)

    def improve(self, bracket: Bracket, time: Slice) -> None:
        """Takes milliseconds a period, regardless of ``time``."""
        found = list_periodic(bracket.instance, self.near, ceil(bracket.best.period) - 1)
        if found is not None:
            bracket.offer(found, self.name)


def list_periodic(instance: TickProblem, least: int, most: int) -> Periodic | None:
    """A steady state with a period of ``least`` to ``most`` ticks, one micro-batch a period; ``None`` if none is found.

    Problems with links are left to others: the order of their transfers is not considered here.
    """
    if any(arc.link is not None for arc in instance.arcs):
        return None
    graph = _LeastGraph.of(instance)
    period = max(1, least)
    while period <= most:
        plan = _Plan(graph, period)
        if plan.build() and plan.fit():
            return retime(instance, period, plan.starts)
        period = int(period * PARAMETERS.list_growth) + 1
    return None


@dataclass(frozen=True)
class _LeastGraph:
    """The blocks' devices, their neighbours as ``(block, ticks from start to start, distance)``, and a first order."""

    instance: TickProblem
    devices: Sequence[Sequence[int]]
    before: Sequence[Sequence[tuple[int, int, int]]]
    after: Sequence[Sequence[tuple[int, int, int]]]
    order: Sequence[int]

    @classmethod
    def of(cls, instance: TickProblem) -> _LeastGraph:
        devices = [block.devices for block in instance.problem.blocks]
        before: list[list[tuple[int, int, int]]] = [[] for _ in instance.blocks]
        after: list[list[tuple[int, int, int]]] = [[] for _ in instance.blocks]
        for arc in instance.arcs:
            length = instance.durations[arc.source] + arc.lag
            before[arc.target].append((arc.source, length, arc.distance))
            after[arc.source].append((arc.target, length, arc.distance))
        return cls(instance, devices, before, after, _first_order(instance, after))


def _first_order(instance: TickProblem, after: Sequence[Sequence[tuple[int, int, int]]]) -> Sequence[int]:
    """By earliest start; blocks without dependents that can wait themselves (weight gradients) fill the gaps later."""
    topological, (head, behind) = instance.problem.topological_order, instance.heads_and_tails
    tail = [own + rest for own, rest in zip(instance.durations, behind, strict=True)]
    critical = max(head[i] + tail[i] for i in topological)
    rank = {i: position for position, i in enumerate(topological)}
    return sorted(topological, key=lambda i: (not after[i] and head[i] + tail[i] < critical, head[i], rank[i]))


class _Plan:
    """Starts of all blocks at one period, and each device's busy stretches in it."""

    def __init__(self, graph: _LeastGraph, period: int) -> None:
        self.graph = graph
        self.instance = graph.instance
        self.period = period
        self.starts = [0] * len(graph.devices)
        self._busy: list[list[tuple[int, int, int]]] = [[] for _ in self.instance.capacity]  # begin, end, block

    def build(self) -> bool:
        """Every block as early as possible, in the graph's order; False if some device has no room for one."""
        placed: set[int] = set()
        for i in self.graph.order:
            ready = max((self.starts[source] + length - distance * self.period
                         for source, length, distance in self.graph.before[i] if source in placed), default=0)
            start = self._earliest(i, ready)
            if start is None:
                return False
            self._put(i, start)
            placed.add(i)
        return all(self.starts[arc.target] >= self.starts[arc.source] + self.instance.durations[arc.source] + arc.lag
                   - arc.distance * self.period for arc in self.instance.arcs)

    def fit(self) -> bool:
        """Move blocks until the memory suffices; False if it does not after some rounds."""
        for _ in range(PARAMETERS.list_rounds):
            self._justify_right()
            if self._fits():
                return True
            self._justify_left()
            if self._fits():
                return True
        return False

    def _justify_right(self) -> None:
        durations = self.instance.durations
        for i in sorted(self.instance.blocks, key=lambda i: (-self.starts[i] - durations[i], -self.starts[i])):
            limit = min((self.starts[target] - length + distance * self.period
                         for target, length, distance in self.graph.after[i]), default=self.starts[i])
            if limit > self.starts[i]:
                self._take_out(i)
                start = self._latest(i, limit)
                self._put(i, self.starts[i] if start is None else max(start, self.starts[i]))

    def _justify_left(self) -> None:
        for i in sorted(self.instance.blocks, key=lambda i: self.starts[i]):
            limit = max((self.starts[source] + length - distance * self.period
                         for source, length, distance in self.graph.before[i]), default=self.starts[i])
            if limit < self.starts[i]:
                self._take_out(i)
                start = self._earliest(i, limit)
                self._put(i, self.starts[i] if start is None else min(start, self.starts[i]))

    def _fits(self) -> bool:
        """Whether the steady state's peak fits every device and every mixed pool."""
        for device, capacity in enumerate(self.instance.capacity):
            if capacity is None or not self.instance.limited(device):
                continue
            take, change = self.instance.take[device], self.instance.change[device]
            ring = ring_of(self.instance, device, self.period, self.starts)
            level = sum(change[i] * micro_batch for i, micro_batch in ring)
            for i, _ in ring:
                if level + take[i] > capacity:
                    return False
                level += change[i]
        return fits_pools(Periodic(self.instance, Fraction(self.period), tuple(map(Fraction, self.starts))))

    # -- the table ------------------------------------------------------------------------------------------------

    def _put(self, i: int, start: int) -> None:
        self.starts[i] = start
        begin, end = start % self.period, start % self.period + self.instance.durations[i]
        for device in self.graph.devices[i]:
            if end <= self.period:
                insort(self._busy[device], (begin, end, i))
            else:
                insort(self._busy[device], (begin, self.period, i))
                insort(self._busy[device], (0, end - self.period, i))

    def _take_out(self, i: int) -> None:
        for device in self.graph.devices[i]:
            self._busy[device] = [entry for entry in self._busy[device] if entry[2] != i]

    def _earliest(self, i: int, start: int) -> int | None:
        """The first start from ``start`` on, within a period, at which all of the block's devices are free."""
        last = start + self.period
        while start < last:
            hit = self._collision(i, start)
            if hit is None:
                return start
            start += hit[1]
        return None

    def _latest(self, i: int, start: int) -> int | None:
        """The last start up to ``start``, within a period, at which all of the block's devices are free."""
        first = start - self.period
        while start > first:
            hit = self._collision(i, start)
            if hit is None:
                return start
            start -= hit[0]
        return None

    def _collision(self, i: int, start: int) -> tuple[int, int] | None:
        """The number of ticks by which the block must start earlier, or later, to clear the first stretch it meets."""
        begin = start % self.period
        end = begin + self.instance.durations[i]
        for device in self.graph.devices[i]:
            for first, last, _ in self._busy[device]:
                if first < end and begin < last:
                    return end - first, last - begin
                if first + self.period < end:
                    return end - first - self.period, last + self.period - begin
        return None
