"""What mixed pools (:mod:`weft.solver.pools`) hold at given times, and orders paced so that it is no more than they
have."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from fractions import Fraction

from weft.solver.control.clock import checkpoint
from weft.solver.pools import MixedPool, Op, PooledOrders, memory_waits
from weft.solver.relations.fixed_order import FixedOrder
from weft.solver.ticks import TickProblem
from weft.solver.timing import DeadlockError, Orders

__all__ = ["fits_pools", "paced", "with_waits"]


def fits_pools(instance: TickProblem, start: Mapping[Op, int | Fraction]) -> bool:
    """Whether all mixed pools have room for what they hold if operations start so, in ticks."""
    return all(_peak(instance, pool, start) <= pool.capacity for pool in instance.mixed_pools)


def _peak(instance: TickProblem, pool: MixedPool, start: Mapping[Op, int | Fraction]) -> int:
    changes: list[tuple[int | Fraction, int, int]] = []
    for op, at in start.items():
        if op[0] in pool.take:
            changes.append((at, 1, pool.take[op[0]]))
            changes.append((at + instance.durations[op[0]], 0, -pool.given(op[0])))
    level = peak = 0
    for _, _, step in sorted(changes):  # at one time, what ends comes first
        level += step
        peak = max(peak, level)
    return peak


def with_waits(instance: TickProblem, rows: Orders, start: Mapping[Op, int]) -> PooledOrders:
    """``rows`` with what waits for memory at these times, in ticks."""
    end = {op: at + instance.durations[op[0]] for op, at in start.items()}
    return PooledOrders(rows, memory_waits(instance.problem, instance.mixed_pools, rows, start, end))


def paced(instance: TickProblem, micro_batches: int, orders: Orders) -> Orders | None:
    """``orders`` with waits under which the earliest times fit the mixed pools; None where none are found.

    As they are where no pool is mixed. Else their earliest times are taken if they fit. If not, time is gone through
    once: an operation starts as soon as its turn has come, what it waits for is there, and its pools have room; that
    may end where nothing can start any more.
    """
    if not instance.mixed_pools:
        return orders
    start = _earliest(instance, micro_batches, orders)
    fits = start is not None and fits_pools(instance, start)
    if not fits:
        rows = tuple(orders)
        start = _earliest(instance, micro_batches, rows)
        start = None if start is None else _Pass(instance, micro_batches, rows, start).run()
    if start is None:
        return None
    found = with_waits(instance, orders, start)
    again = _earliest(instance, micro_batches, found)
    if again is not None and fits_pools(instance, again):
        return found
    return orders if fits else None  # what is given before it is taken may ask for more than waits


def _earliest(instance: TickProblem, micro_batches: int, orders: Orders) -> Mapping[Op, int] | None:
    """The earliest starts; None where something waits for itself."""
    try:
        return FixedOrder(instance, micro_batches, orders).start
    except DeadlockError:
        return None


class _Pass:
    """One pass through time under ``orders``; of what may start at one time, what ``earliest`` has first goes first."""

    def __init__(self, instance: TickProblem, micro_batches: int, orders: Orders, earliest: Mapping[Op, int]) -> None:
        self.instance, self.micro_batches, self.rows = instance, micro_batches, orders
        self.earliest = earliest
        self.start: dict[Op, int] = {}
        self._turn = [0] * len(orders)  # how many of each row have started
        self._free = [0] * len(orders)
        self._link_free = [0] * len(instance.problem.links)
        self._arcs_from = [[arc for arc in instance.arcs if arc.source == i] for i in instance.blocks]
        self._missing = dict.fromkeys(earliest, 0)
        self._arrival = dict.fromkeys(earliest, 0)
        for arc in instance.arcs:
            for m in range(arc.distance, micro_batches):
                self._missing[arc.target, m] += 1
        self._levels = [0] * len(instance.mixed_pools)
        self._times = [0]
        self._gives: list[tuple[int, int, int]] = []  # when, pool, amount

    def run(self) -> dict[Op, int] | None:
        """When each operation starts, or None where nothing can start any more."""
        while self._times:
            checkpoint()
            now = heapq.heappop(self._times)
            while self._gives and self._gives[0][0] <= now:
                _, pool, amount = heapq.heappop(self._gives)
                self._levels[pool] -= amount
            for op in sorted(self._heads(), key=lambda op: (self.earliest[op], op)):
                if self._may_start(op, now):
                    self._run(op, now)
        return self.start if len(self.start) == len(self.earliest) else None

    def _heads(self) -> set[Op]:
        """What is next on all of its devices."""
        heads = {row[turn] for row, turn in zip(self.rows, self._turn, strict=True) if turn < len(row)}
        return {op for op in heads if all(self.rows[d][self._turn[d]] == op
                                          for d in self.instance.problem.blocks[op[0]].devices)}

    def _may_start(self, op: Op, now: int) -> bool:
        return (not self._missing[op] and self._arrival[op] <= now
                and all(self._free[d] <= now for d in self.instance.problem.blocks[op[0]].devices)
                and all(level + pool.take.get(op[0], 0) <= pool.capacity or not pool.take.get(op[0], 0)
                        for level, pool in zip(self._levels, self.instance.mixed_pools, strict=True)))

    def _run(self, op: Op, now: int) -> None:
        block, m = op
        end = now + self.instance.durations[block]
        self.start[op] = now
        heapq.heappush(self._times, end)
        for d in self.instance.problem.blocks[block].devices:
            self._turn[d] += 1
            self._free[d] = end
        for number, pool in enumerate(self.instance.mixed_pools):
            if block in pool.take:
                self._levels[number] += pool.take[block]
                heapq.heappush(self._gives, (end, number, pool.given(block)))
        for arc in self._arcs_from[block]:
            if m + arc.distance >= self.micro_batches:
                continue
            begin = end if arc.link is None else max(end, self._link_free[arc.link])
            if arc.link is not None:
                self._link_free[arc.link] = begin + arc.lag
            consumer = arc.target, m + arc.distance
            self._missing[consumer] -= 1
            self._arrival[consumer] = max(self._arrival[consumer], begin + arc.lag)
            heapq.heappush(self._times, begin + arc.lag)
