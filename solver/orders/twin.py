"""The kernel in Python: the same decisions as kernel.cpp, a hundred times slower. It runs where there is no binary, and
is the oracle of the tests.

*State*: the order of operations on every row (:mod:`weft.solver.orders.tables`), every operation as early as that
allows. Transfers on a link follow the order of their producers. Where lanes share a memory, an operation starts as soon
as its turn has come, what it waits for is there and the memory has room.

*Moves*: two neighbouring runs of a row change places, mostly where the critical path goes from the one into the other,
as nothing else can shorten it (Balas and Vazacopoulos, "Guided Local Search with Shifting Bottleneck for Job Shop
Scheduling", Management Science 44, 1998): two operations, one that goes further, all operations of one block that stand
together, or any two short runs. A quarter of the moves are two at once. Operations of one block keep the order of
their micro-batches. Where blocks run on several devices, the other rows follow.

*Annealing* (van Laarhoven, Aarts and Lenstra, "Job Shop Scheduling by Simulated Annealing", Operations Research 40,
1992): a move that makes the schedule ``x`` ticks longer is taken with the probability exp(-x / heat), and the heat
falls from ``hot`` to ``cold``. Orders that do not fit the memory are charged ``penalty`` ticks for each unit too much;
once they fit, no move is taken that does not.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from weft.solver.control.clock import checkpoint
from weft.solver.orders.tables import Integers, Longs, Tables

__all__ = ["NEVER", "TwinKernel"]

#: The makespan of orders that wait for each other in a circle.
NEVER = (2**63 - 1) // 4
_MASK = 2**64 - 1


class _Random:
    """SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014)."""

    def __init__(self, seed: int) -> None:
        self.state = seed & _MASK

    def next(self) -> int:
        self.state = self.state + 0x9E3779B97F4A7C15 & _MASK
        z = self.state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
        return z ^ z >> 31

    def below(self, n: int) -> int:
        """A whole number from 0 on, below ``n``."""
        return (self.next() >> 33) % n

    def unit(self) -> float:
        """Above 0 and at most 1."""
        return ((self.next() >> 11) + 1.0) * 2.0**-53


@dataclass(frozen=True, slots=True)
class _Arc:
    source: int
    target: int
    distance: int
    link: int
    lag: int
    node: int  # of its transfers, as a block has one for its operations; -1 without a link


class TwinKernel:
    """The orders of one problem, and their local search. Nodes are operations ``block * micro_batches + m``, and behind
    them the transfers on links."""

    def __init__(self, tables: Tables) -> None:
        self.count = tables.micro_batches
        self.duration: list[int] = tables.duration.tolist()
        self.operations = len(self.duration) * self.count
        self.arcs: list[_Arc] = []
        linked = len(self.duration)
        for (source, target, distance, link), lag in zip(tables.arc.tolist(), tables.lag.tolist(), strict=True):
            self.arcs.append(_Arc(source, target, distance, link, lag, -1 if link < 0 else linked))
            linked += link >= 0
        self.of_node = {arc.node: arc for arc in self.arcs if arc.node >= 0}
        blocks = range(len(self.duration))
        self.into = [[arc for arc in self.arcs if arc.target == b] for b in blocks]
        self.out = [[arc for arc in self.arcs if arc.source == b] for b in blocks]
        self.rows_of = [[r for r, row in enumerate(tables.rows) if b in row] for b in blocks]
        self.lengths = [len(row) * self.count for row in tables.rows]
        self.begin = [0, *np.cumsum(self.lengths, dtype=np.int64).tolist()]
        self.link_row: list[int] = tables.link_row.tolist()
        self.memories = list(zip(tables.memory_row.tolist(), tables.capacity.tolist(), tables.take.tolist(),
                                 tables.change.tolist(), strict=True))
        self.pools = list(zip(tables.pool_capacity.tolist(), tables.pool_take.tolist(), tables.pool_given.tolist(),
                              strict=True))
        self.rows: list[list[int]] = [[] for _ in tables.rows]
        self.place: list[dict[int, int]] = [{} for _ in tables.rows]  # per row, where each operation stands
        self.start: dict[int, int] = {}
        self.before_on_link: dict[int, int] = {}
        self.cause: dict[int, int] = {}  # with pools: whose end made room for an operation, or -1
        self.makespan = self.best = NEVER
        self.overflow = 0.0
        self._best: list[list[int]] = []
        self._path: list[tuple[int, int]] | None = None

    # -- what a caller uses ---------------------------------------------------------------------------------------

    def set(self, rows: Integers) -> bool:
        """Take over the operations of all rows, one row behind the other; whether they can be run. Where that is so
        and they fit, they may be the best."""
        if len(rows) != self.begin[-1]:
            raise ValueError(f"there are {len(rows)} operations in rows of {self.begin[-1]}")
        flat = rows.tolist()
        self._put([flat[a:b] for a, b in zip(self.begin, self.begin[1:], strict=False)])
        self.overflow = self._overflow()
        if not self._time():
            self.makespan = NEVER
            return False
        self._keep_if_best()
        return True

    @property
    def best_rows(self) -> Integers:
        """The best orders that fit, as :meth:`set` takes them; their makespan is ``best``."""
        return np.array([v for row in self._best for v in row], dtype=np.int32)

    @property
    def starts(self) -> Longs:
        """When each operation starts, in ticks."""
        return np.array([self.start.get(v, 0) for v in range(self.operations)], dtype=np.int64)

    def back_to_best(self) -> None:
        """Go on from the best orders."""
        if self.best < NEVER:
            self.set(self.best_rows)

    def anneal(self, evaluations: int, hot: float, cold: float, penalty: float, seed: int) -> int:
        """Try so many moves from where it stands; how often a better schedule was found that fits."""
        random, heat, better = _Random(seed), hot, 0
        cooling = (cold / hot) ** (1.0 / (evaluations - 1)) if evaluations > 1 else 1.0
        if self.makespan >= NEVER:
            return 0
        for number in range(evaluations):
            if not number & 63:
                checkpoint()
            better += self._try(random, heat, penalty)
            heat *= cooling
        return better

    # -- one move -------------------------------------------------------------------------------------------------

    def _try(self, random: _Random, heat: float, penalty: float) -> bool:
        """Take a move or take it back; whether there is a better schedule then."""
        allowed = float(self.makespan) + penalty * self.overflow - heat * math.log(random.unit())
        rows, start, cause = [*map(list.copy, self.rows)], self.start, self.cause
        makespan, overflow = self.makespan, self.overflow
        moved = self._propose(random)
        if random.below(4) == 0:
            moved = self._propose(random) or moved
        self.overflow = self._overflow()
        room = allowed - penalty * self.overflow
        if moved and room >= 0 and not self.overflow > 0 == overflow and self._time() and self.makespan <= room:
            self._path = None
            return self._keep_if_best()
        path = self._path
        self._put(rows)
        self.start, self.cause, self.makespan, self.overflow, self._path = start, cause, makespan, overflow, path
        return False

    def _propose(self, random: _Random) -> bool:
        """Exchange two neighbouring runs of a row; whether there are any."""
        path = self._critical()
        what = random.below(16)
        if not path or what == 0:
            at = random.below(self.begin[-1])
            row = bisect_right(self.begin, at) - 1
            middle = at - self.begin[row]
        else:
            op, row = path[random.below(len(path))]
            middle = self.place[row][op]
        if middle == 0:
            return False
        ops, size = self.rows[row], len(self.rows[row])
        first, last = middle - 1, middle + 1
        if 8 <= what < 11:
            far = 1 + random.below(1 << 1 + random.below(5))
            if random.below(2):
                first = max(0, middle - far)
            else:
                last = min(size, middle + far)
        elif 11 <= what < 14:
            while what != 12 and first > 0 and self._block(ops[first - 1]) == self._block(ops[middle - 1]):
                first -= 1
            while what != 13 and last < size and self._block(ops[last]) == self._block(ops[middle]):
                last += 1
        elif what >= 14:
            first = max(0, middle - 1 - random.below(6))
            last = min(size, middle + 1 + random.below(6))
        return self._exchange(row, first, middle, last)

    def _exchange(self, row: int, first: int, middle: int, last: int) -> bool:
        one, other = self.rows[row][first:middle], self.rows[row][middle:last]
        if {*map(self._block, one)} & {*map(self._block, other)}:
            return False
        for further in range(len(self.rows)):
            if further != row and not self._follow(further, one, other):
                return False
        self._replace(row, first, other + one)
        return True

    def _follow(self, row: int, one: list[int], other: list[int]) -> bool:
        """In a further row, put what is in ``other`` before what is in ``one``; whether that can be."""
        place = self.place[row]
        firsts, lasts = [place[v] for v in one if v in place], [place[v] for v in other if v in place]
        if not firsts or not lasts or min(firsts) > max(lasts):
            return True
        run = self.rows[row][min(firsts):max(lasts) + 1]
        now, rest = [v for v in run if v in other], [v for v in run if v not in other]
        if {*map(self._block, now)} & {*map(self._block, rest)}:
            return False
        self._replace(row, min(firsts), now + rest)
        return True

    # -- orders and their times -----------------------------------------------------------------------------------

    def _block(self, op: int) -> int:
        return op // self.count

    def _put(self, rows: list[list[int]]) -> None:
        self.rows = rows
        self.place = [{v: at for at, v in enumerate(row)} for row in rows]
        self._path = None

    def _replace(self, row: int, first: int, now: list[int]) -> None:
        self.rows[row][first:first + len(now)] = now
        self.place[row].update((v, first + k) for k, v in enumerate(now))

    def _keep_if_best(self) -> bool:
        if self.overflow > 0 or self.makespan >= self.best:
            return False
        self.best, self._best = self.makespan, [*map(list.copy, self.rows)]
        return True

    def _overflow(self) -> float:
        """By how much the orders exceed their memories, added up over all operations."""
        over = 0.0
        for row, capacity, take, change in self.memories:
            level = 0
            for op in self.rows[row]:
                over += max(0, level + take[op // self.count] - capacity)
                level += change[op // self.count]
        return over

    def _length(self, node: int) -> int:
        return self.duration[node // self.count] if node < self.operations else self.of_node[node // self.count].lag

    def _before(self, node: int) -> Iterator[tuple[int, int, int]]:
        """What ``node`` waits for, how long after its start, and the row that says so or -1."""
        block, m = divmod(node, self.count)
        if node >= self.operations:
            arc = self.of_node[block]
            yield arc.source * self.count + m, self.duration[arc.source], -1
            if node in self.before_on_link:
                yield self.before_on_link[node], self._length(self.before_on_link[node]), -1
            return
        for row in self.rows_of[block]:
            at = self.place[row][node]
            if at:
                yield self.rows[row][at - 1], self._length(self.rows[row][at - 1]), row
        for arc in self.into[block]:
            if m >= arc.distance:
                source = (arc.source if arc.link < 0 else arc.node) * self.count + m - arc.distance
                yield source, arc.lag + (self.duration[arc.source] if arc.link < 0 else 0), -1

    def _queue_transfers(self) -> None:
        self.before_on_link = {}
        last: dict[int, int] = {}
        for row, ops in enumerate(self.rows):
            for op in ops:
                block, m = divmod(op, self.count)
                for arc in self.out[block]:
                    if arc.link >= 0 and self.link_row[arc.link] == row and m + arc.distance < self.count:
                        node = arc.node * self.count + m
                        if arc.link in last:
                            self.before_on_link[node] = last[arc.link]
                        last[arc.link] = node

    def _time(self) -> bool:
        """Time all nodes; whether none waits for itself, or for room that nobody makes."""
        if self.pools:
            start = self._simulate()
        else:
            self._queue_transfers()
            start = self._longest_paths()
        if start is None:
            return False
        self.start = start
        self.makespan = max((start[row[-1]] + self._length(row[-1]) for row in self.rows if row), default=0)
        return True

    def _longest_paths(self) -> dict[int, int] | None:
        nodes = [*range(self.operations), *(arc.node * self.count + m for arc in self.of_node.values()
                                            for m in range(self.count - arc.distance))]
        waits = {node: [*self._before(node)] for node in nodes}
        after: dict[int, list[int]] = {node: [] for node in nodes}
        missing = {node: len(of) for node, of in waits.items()}
        for node, of in waits.items():
            for before, _, _ in of:
                after[before].append(node)
        start: dict[int, int] = {}
        ready = [node for node in nodes if not missing[node]]
        for node in ready:  # grows as it is read
            start[node] = max((start[before] + distance for before, distance, _ in waits[node]), default=0)
            for following in after[node]:
                missing[following] -= 1
                if not missing[following]:
                    ready.append(following)
        return start if len(start) == len(nodes) else None

    def _simulate(self) -> dict[int, int] | None:
        """One pass through time: of what may start at one time, the first micro-batch first."""
        turn, free = [0] * len(self.rows), [0] * len(self.rows)
        link_free, level = [0] * len(self.link_row), [0] * len(self.pools)
        start: dict[int, int] = {}
        self.cause = {}
        missing, arrival = dict.fromkeys(range(self.operations), 0), dict.fromkeys(range(self.operations), 0)
        for arc in self.arcs:
            for m in range(arc.distance, self.count):
                missing[arc.target * self.count + m] += 1
        times, gives = [0], list[tuple[int, int, int, int]]()
        while times:
            now, giver = heapq.heappop(times), -1
            while times and times[0] == now:
                heapq.heappop(times)
            while gives and gives[0][0] <= now:
                _, pool, amount, giver = heapq.heappop(gives)
                level[pool] -= amount
            heads = [row[at] for row, at in zip(self.rows, turn, strict=True) if at < len(row)]
            ready = {v for v in heads if not missing[v] and arrival[v] <= now
                     and all(self.place[r][v] == turn[r] and free[r] <= now for r in self.rows_of[v // self.count])}
            for op in sorted(ready, key=lambda v: (v % self.count, v)):
                block, m = divmod(op, self.count)
                if any(take[block] and held + take[block] > capacity
                       for held, (capacity, take, _) in zip(level, self.pools, strict=True)):
                    continue
                waited = arrival[op] < now and all(free[r] < now for r in self.rows_of[block])
                self.cause[op] = giver if waited else -1
                end = now + self.duration[block]
                start[op] = now
                heapq.heappush(times, end)
                for r in self.rows_of[block]:
                    turn[r] += 1
                    free[r] = end
                for pool, (_, take, given) in enumerate(self.pools):
                    level[pool] += take[block]
                    if given[block]:
                        heapq.heappush(gives, (end, pool, given[block], op))
                for arc in self.out[block]:
                    if m + arc.distance >= self.count:
                        continue
                    begin = end
                    if arc.link >= 0:
                        begin = max(end, link_free[arc.link])
                        start[arc.node * self.count + m] = begin
                        link_free[arc.link] = begin + arc.lag
                    target = arc.target * self.count + m + arc.distance
                    missing[target] -= 1
                    arrival[target] = max(arrival[target], begin + arc.lag)
                    heapq.heappush(times, begin + arc.lag)
        return start if all(at == len(row) for at, row in zip(turn, self.rows, strict=True)) else None

    # -- the critical path ----------------------------------------------------------------------------------------

    def _critical(self) -> list[tuple[int, int]]:
        """The operations of the critical path to which a row leads, from its end on, each with that row."""
        if self._path is None:
            self._path = [*self._walk_back()]
        return self._path

    def _walk_back(self) -> Iterator[tuple[int, int]]:
        ends = (row[-1] for row in self.rows if row)
        node = next((v for v in ends if self.start[v] + self._length(v) == self.makespan), -1)
        while node >= 0:
            tight = ((before, row) for before, distance, row in self._before(node)
                     if self.start[before] + distance == self.start[node])
            previous, row = next(tight, (-1, -1))
            if previous < 0 and node < self.operations and self.pools:
                previous = self.cause.get(node, -1)
            if row >= 0:
                yield node, row
            node = previous
