"""A pass through time over the micro-batches of a block graph: which operations have run, arrived and can start.

List schedules of all kinds share it (:mod:`weft.solver.baselines.rivals.greedy`,
:mod:`weft.solver.baselines.lib.priority_rule`); they decide which operation starts next.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from weft.solver.baselines.lib.amounts import Amounts
from weft.solver.baselines.lib.base import Row
from weft.solver.control.clock import checkpoint
from weft.solver.problem import Problem


class TimePass:
    """``following``: each block's next micro-batch; ``open``: the blocks whose next one has all its inputs, available
    at its ``arrival``. ``levels``: the levels of devices, ``free``: the ends of the operations they have started;
    ``rows``: these operations, in order; ``left``: the number of operations that have not started."""

    def __init__(self, problem: Problem, micro_batches: int, amounts: Amounts) -> None:
        count, n = len(problem.blocks), micro_batches
        self.problem, self.n, self.amounts, self.left = problem, n, amounts, count * n
        self.waits = [0] * (count * n)  # operation (b, m) has the number b * n + m
        self.arrival = [0.0] * (count * n)
        self.consumers: list[list[tuple[int, float, str | None, int]]] = [[] for _ in problem.blocks]
        for producer, consumer, dependency in problem.dependencies():
            self.consumers[producer].append((consumer, dependency.lag, dependency.link, dependency.distance))
            for m in range(dependency.distance, n):
                self.waits[consumer * n + m] += 1
        self.following = [0] * count
        self.open = {i for i in range(count) if not self.waits[i * n]}
        self.levels = [0] * len(problem.devices)
        self.free = [0.0] * len(problem.devices)
        self.link_free = dict.fromkeys(problem.links_by_name, 0.0)
        self.rows: list[Row] = [[] for _ in problem.devices]
        self.times = [0.0]

    def moments(self) -> Iterator[float]:
        """The times at which something ends or arrives, until all has started or nothing more happens."""
        while self.left and self.times:
            checkpoint()
            now = heapq.heappop(self.times)
            while self.times and self.times[0] == now:
                heapq.heappop(self.times)
            yield now

    def start(self, i: int, now: float) -> float:
        """Start the next micro-batch of block ``i``; returns its end."""
        block, m, n = self.problem.blocks[i], self.following[i], self.n
        self.following[i] = m + 1
        if m + 1 == n or self.waits[i * n + m + 1]:
            self.open.remove(i)
        self.left -= 1
        end = now + block.duration
        heapq.heappush(self.times, end)
        for d in block.devices:
            self.rows[d].append((i, m))
            self.free[d] = end
            self.levels[d] += self.amounts.change[d][i]  # nothing else starts there before this block has ended
        for consumer, lag, link, distance in self.consumers[i]:
            if m + distance >= n:
                continue
            begin = end if link is None else max(end, self.link_free[link])
            j = consumer * n + m + distance
            self.waits[j] -= 1
            if not self.waits[j] and self.following[consumer] == m + distance:
                self.open.add(consumer)
            self.arrival[j] = max(self.arrival[j], begin + lag)
            if link is not None:
                self.link_free[link] = begin + lag
            if begin + lag > end:
                heapq.heappush(self.times, begin + lag)
        return end
