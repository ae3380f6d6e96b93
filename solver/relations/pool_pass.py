"""One pass through time that keeps the memory of pools: every operation starts as soon as it can, in an order of
preference.

*Safe.* Say all operations fit the pools if they run one after the other in the order. An operation that overtakes
others of it may then take memory only if these still fit, one after the other, once it and all that has started have
ended. So that stays true of the rest, and the pass never gets stuck: if nothing runs, the first operation left has all
its inputs, its engines, and its memory. In particular, loads never fill memory that computations before them need.

The levels of mixed pools (:mod:`weft.solver.pools`) at given times, and orders paced so that these stay within the
capacities.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from weft.solver.control.clock import checkpoint
from weft.solver.pools import MixedPool, Op, PooledOrders, memory_waits
from weft.solver.relations.fixed_order import FixedOrder
from weft.solver.ticks import Arc, TickProblem
from weft.solver.timing import DeadlockError, Orders

#: The number of ready operations considered on an idle engine, the first in the order: others hardly ever fit if none
#: of these does.
_LOOKED_AT = 16


class PoolPass:
    """All operations of ``micro_batches`` on engines that run them in the order of ``rows``, or without these in any
    order; of those that may start at one time, the first in ``order`` starts first. The memory of ``pools`` is kept;
    with ``safe`` as described above, where ``order`` is one in which all fit one after the other. Inside, an operation
    is its place in ``order``. ``sent``: the begin of each transfer on a link, by the number of its arc and its
    producer's micro-batch. ``cause``: for an operation that waited only for room, the one whose end made it."""

    def __init__(self, instance: TickProblem, micro_batches: int, pools: Sequence[MixedPool], order: Sequence[Op],
                 rows: Orders | None = None, *, safe: bool = True) -> None:
        self.instance, self.micro_batches = instance, micro_batches
        self.pools, self.order, self.safe = pools, order, safe
        self.place = {op: k for k, op in enumerate(order)}
        self.start: dict[Op, int] = {}
        self.sent: dict[tuple[int, int], int] = {}
        self.cause: dict[Op, Op] = {}
        self._rows = None if rows is None else [[self.place[op] for op in row] for row in rows]
        self._turn = [0] * len(instance.capacity)  # how many of each row have started
        self._free = [0] * len(instance.capacity)
        self._link_free = [0] * len(instance.problem.links)
        self._arcs_from: list[list[tuple[int, Arc]]] = [[] for _ in instance.blocks]
        self._missing = [0] * len(order)
        self._arrival = [0] * len(order)
        for number, arc in enumerate(instance.arcs):
            self._arcs_from[arc.source].append((number, arc))
            for m in range(arc.distance, micro_batches):
                self._missing[self.place[arc.target, m]] += 1
        if rows is None:  # a block's micro-batches run in turn
            for k, (_, m) in enumerate(order):
                self._missing[k] += m > 0
        self._ready: list[list[int]] = [[] for _ in instance.capacity]  # the ready operations on each engine
        for k in range(len(order)):
            self._open(k)
        self._levels = [0] * len(pools)
        self._settled = [0] * len(pools)  # the level once all that has started has ended
        self._sharers = [[k for k, (block, _) in enumerate(order) if block in pool.take] for pool in pools]
        self._first = [0] * len(pools)  # the first of these that has not started
        self._times = [0]
        self._gives: list[tuple[int, int, int, Op]] = []  # when, pool, amount, whose

    def run(self) -> dict[Op, int] | None:
        """The start of each operation, in ticks, or None if nothing more can start."""
        while self._times:
            checkpoint()
            now, giver = heapq.heappop(self._times), None
            while self._times and self._times[0] == now:
                heapq.heappop(self._times)
            while self._gives and self._gives[0][0] <= now:
                _, pool, amount, giver = heapq.heappop(self._gives)
                self._levels[pool] -= amount
            self._start_what_can(now, giver)
        return self.start if len(self.start) == len(self.order) else None

    def _open(self, k: int) -> None:
        if not self._missing[k] and self._rows is None:
            for d in self._devices(k):
                insort(self._ready[d], k)

    def _devices(self, k: int) -> tuple[int, ...]:
        return self.instance.problem.blocks[self.order[k][0]].devices

    def _candidates(self, now: int) -> Iterable[int]:
        """The next candidates on idle engines, the most preferred first."""
        idle = [d for d, free in enumerate(self._free) if free <= now]
        if self._rows is None:
            return sorted({k for d in idle for k in self._ready[d][:_LOOKED_AT]})
        heads = {self._rows[d][self._turn[d]] for d in idle if self._turn[d] < len(self._rows[d])}
        return sorted(k for k in heads if not self._missing[k] and all(
            self._turn[d] < len(self._rows[d]) and self._rows[d][self._turn[d]] == k for d in self._devices(k)))

    def _start_what_can(self, now: int, giver: Op | None) -> None:
        kept: set[int] = set()  # engines kept free for an operation on several of which some are busy
        for k in self._candidates(now):
            devices = self._devices(k)
            idle = all(self._free[d] <= now for d in devices)
            if self._arrival[k] > now or not kept.isdisjoint(devices) or not (idle or len(devices) > 1):
                continue
            if self._fits(k):
                if idle:
                    if giver is not None and self._arrival[k] < now and all(self._free[d] < now for d in devices):
                        self.cause[self.order[k]] = giver
                    self._run(k, now)
                else:
                    kept.update(devices)

    def _fits(self, k: int) -> bool:
        block = self.order[k][0]
        for number, pool in enumerate(self.pools):
            take = pool.take.get(block, 0)
            if take and self._levels[number] + take > pool.capacity:
                return False
            if self.safe and pool.change.get(block, 0) > 0 and not self._leaves_room(number, k, pool.change[block]):
                return False
        return True

    def _leaves_room(self, number: int, k: int, more: int) -> bool:
        """Whether all that ``k`` overtakes in the pool fits with ``more`` occupied."""
        pool, sharers = self.pools[number], self._sharers[number]
        level = self._settled[number] + more
        for place in range(self._first[number], len(sharers)):
            other = sharers[place]
            if other >= k:
                break
            block = self.order[other][0]
            if self.order[other] in self.start:
                continue
            if pool.take[block] and level + pool.take[block] > pool.capacity:
                return False
            level += pool.change[block]
        return True

    def _run(self, k: int, now: int) -> None:
        block, m = self.order[k]
        end = now + self.instance.durations[block]
        self.start[block, m] = now
        heapq.heappush(self._times, end)
        for d in self._devices(k):
            self._turn[d] += 1
            self._free[d] = end
            if self._rows is None:
                self._ready[d].remove(k)
        if self._rows is None and m + 1 < self.micro_batches:
            self._arrive(self.place[block, m + 1], now)
        for number, pool in enumerate(self.pools):
            if block in pool.take:
                self._levels[number] += pool.take[block]
                self._settled[number] += pool.change[block]
                if pool.given(block):
                    heapq.heappush(self._gives, (end, number, pool.given(block), (block, m)))
                sharers, first = self._sharers[number], self._first[number]
                while first < len(sharers) and self.order[sharers[first]] in self.start:
                    first += 1
                self._first[number] = first
        for number, arc in self._arcs_from[block]:
            if m + arc.distance >= self.micro_batches:
                continue
            begin = end
            if arc.link is not None:
                self.sent[number, m] = begin = max(end, self._link_free[arc.link])
                self._link_free[arc.link] = begin + arc.lag
            self._arrive(self.place[arc.target, m + arc.distance], begin + arc.lag)
            heapq.heappush(self._times, begin + arc.lag)

    def _arrive(self, k: int, at: int) -> None:
        self._missing[k] -= 1
        self._arrival[k] = max(self._arrival[k], at)
        self._open(k)


def fits_pools(instance: TickProblem, start: Mapping[Op, int | Fraction]) -> bool:
    """Whether all mixed pools have room for their levels if operations start at these times, in ticks."""
    return all(_peak(instance, pool, start) <= pool.capacity for pool in instance.mixed_pools)


def _peak(instance: TickProblem, pool: MixedPool, start: Mapping[Op, int | Fraction]) -> int:
    changes: list[tuple[int | Fraction, int, int]] = []
    for op, at in start.items():
        if op[0] in pool.take:
            changes.append((at, 1, pool.take[op[0]]))
            changes.append((at + instance.durations[op[0]], 0, -pool.given(op[0])))
    level = peak = 0
    for _, _, step in sorted(changes):  # at one time, ends come first
        level += step
        peak = max(peak, level)
    return peak


def with_waits(instance: TickProblem, rows: Orders, start: Mapping[Op, int]) -> PooledOrders:
    """``rows`` with the waits for memory at these times, in ticks."""
    end = {op: at + instance.durations[op[0]] for op, at in start.items()}
    return PooledOrders(rows, memory_waits(instance.problem, instance.mixed_pools, rows, start, end))


def paced(instance: TickProblem, micro_batches: int, orders: Orders) -> Orders | None:
    """``orders`` with waits under which the earliest times fit the mixed pools; None if none are found.

    Unchanged if no pool is mixed. Otherwise their earliest times are taken if they fit. If not, one pass goes through
    time: an operation starts as soon as its turn has come, its inputs are available, and its pools have room; the pass
    may get stuck.
    """
    if not instance.mixed_pools:
        return orders
    start = _earliest(instance, micro_batches, orders)
    fits = start is not None and fits_pools(instance, start)
    if not fits:
        rows = tuple(orders)
        start = _earliest(instance, micro_batches, rows)
        start = None if start is None else PoolPass(
            instance, micro_batches, instance.mixed_pools, sorted(start, key=lambda op: (start[op], op)), rows,
            safe=False).run()
    if start is None:
        return None
    found = kept(instance, micro_batches, orders, start)
    return orders if found is None and fits else found


def kept(instance: TickProblem, micro_batches: int, rows: Orders, start: Mapping[Op, int]) -> PooledOrders | None:
    """``rows`` with the waits for memory at these times, which fit; None if memory given before it is taken requires
    more than waits."""
    found = with_waits(instance, rows, start)
    again = _earliest(instance, micro_batches, found)
    return found if again is not None and fits_pools(instance, again) else None


def _earliest(instance: TickProblem, micro_batches: int, orders: Orders) -> Mapping[Op, int] | None:
    """The earliest starts; None if an operation waits for itself."""
    try:
        return FixedOrder(instance, micro_batches, orders).start
    except DeadlockError:
        return None
