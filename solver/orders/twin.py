"""The kernel in Python: the same decisions as kernel.cpp, a hundred times slower. It runs where there is no binary, and
is the oracle of the tests.

*State*: the order of operations on every row (:mod:`weft.solver.orders.tables`), every operation as early as that
allows. Transfers on a link follow the order of their producers. Where lanes share a memory, an operation starts as soon
as its turn has come, what it waits for is there and the memory has room.

*Moves*: two neighbouring runs of a row change places, mostly where the critical path goes from the one into the other,
as nothing else can shorten it (Balas and Vazacopoulos, "Guided Local Search with Shifting Bottleneck for Job Shop
Scheduling", Management Science 44, 1998): two operations, one that goes further, all operations of one block that stand
together, or any two short runs. A quarter of the moves are two at once. Operations of one block keep the order of
their micro-batches. Where blocks run on several devices, the other rows follow; or such an operation goes to another
time on all of its devices at once, which no exchange on one of them can do. One move in sixteen is anywhere: without it
periods on many devices stay up to three times as long.

*Annealing* (van Laarhoven, Aarts and Lenstra, "Job Shop Scheduling by Simulated Annealing", Operations Research 40,
1992): a move that makes the schedule ``x`` ticks longer is taken with the probability exp(-x / heat), and the heat
falls from ``hot`` to ``cold``. Orders that do not fit the memory are charged ``penalty`` ticks for each unit too much;
once they fit, no move is taken that does not.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise, takewhile

import numpy as np

from weft.solver.control.clock import checkpoint
from weft.solver.orders.tables import Integers, Longs, Tables
from weft.solver.orders.timed_rows import NEVER, TimedRows

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


class TwinKernel(TimedRows):
    """The orders of one problem, and their local search."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self.best = NEVER
        self._numbers = tables.count
        self._best: list[int] = []
        self._path: list[tuple[int, int]] | None = None

    # -- what a caller uses ---------------------------------------------------------------------------------------

    def set(self, rows: Integers) -> bool:
        """Take over the operations of all rows, one row behind the other; whether they can be run. Where that is so
        and they fit, they may be the best."""
        if len(rows) != self._numbers:
            raise ValueError(f"there are {len(rows)} operations in rows of {self._numbers}")
        flat = rows.tolist()
        self._put([flat[a:b] for a, b in pairwise(self.begin)])
        if self.ring:
            behind = flat[self.begin[-1]:]
            self.offset = [dict(zip(row, behind[a:], strict=False))
                           for row, a in zip(self.rows, self.begin, strict=False)]
        self._path = None
        self.overflow = self._overflow()
        start = self._at_first() if self.cyclic else {}
        self.start = start or {}
        if start is None or not self._time():
            self.makespan = NEVER
            return False
        self._keep_if_best()
        return True

    @property
    def best_rows(self) -> Integers:
        """The best orders that fit, as :meth:`set` takes them; their makespan is ``best``."""
        return np.array(self._best, dtype=np.int32)

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
        rows, start, cause, critical = [*map(list.copy, self.rows)], self.start, self.cause, self.critical
        makespan, overflow, offset = self.makespan, self.overflow, [*map(dict.copy, self.offset)]
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
        self.critical, self.offset = critical, offset
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
        if self.several and random.below(4) == 0:
            for op in reversed(self.rows[row][max(0, middle - 1):middle + 1]):
                if len(self.rows_of[self._block(op)]) > 1:
                    return self._shift(op, row, random)
        if self.ring:  # where a period begins is open: half of it is on either side
            half = len(self.rows[row]) // 2
            self._turn(row, middle - half)
            middle = half
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

    def _shift(self, op: int, row: int, random: _Random) -> bool:
        """Take an operation of several rows to the time of another one in ``row``, in all of its rows at once; whether
        it has moved. It does not pass the micro-batches of its block beside it."""
        far = 1 + random.below(1 << 1 + random.below(5))
        later = random.below(2) == 1
        goal = self.place[row][op] + (far if later else -far)
        time = self.start[self.rows[row][max(0, min(self.lengths[row] - 1, goal))]]
        moved = False
        for here in self.rows_of[self._block(op)]:
            ops, at = self.rows[here], self.place[here][op]
            passed = [*takewhile(lambda v: self._block(v) != self._block(op) and (
                self.start[v] <= time if later else self.start[v] >= time), ops[at + 1:] if later else ops[:at][::-1])]
            if passed:
                moved = True
                self._replace(here, *((at, [*passed, op]) if later else (at - len(passed), [op, *reversed(passed)])))
        return moved

    def _exchange(self, row: int, first: int, middle: int, last: int) -> bool:
        one, other = self.rows[row][first:middle], self.rows[row][middle:last]
        if {*map(self._block, one)} & {*map(self._block, other)}:
            return False
        for further in range(len(self.rows)):
            if further != row and not self._follow(further, row, one, other):
                return False
        self._replace(row, first, other + one)
        return True

    def _follow(self, row: int, led: int, one: list[int], other: list[int]) -> bool:
        """In a further row, put what is in ``other`` before what is in ``one``, as in the row ``led``; whether that can
        be."""
        place, length = self.place[row], len(self.rows[row])
        here = {v: self.offset[row][self._block(v)] - self.offset[led][self._block(v)]
                for v in one + other if v in place}
        shift = next(iter(here.values()), 0)
        at = {v: place[v] + length * (shift - ahead) for v, ahead in here.items()}  # in the period of its micro-batch
        firsts, lasts = [at[v] for v in one if v in at], [at[v] for v in other if v in at]
        if not firsts or not lasts or min(firsts) > max(lasts):
            return True
        first, last = min(firsts), max(lasts)
        if last - first >= length:
            return False
        if self.ring:
            self._turn(row, first)
            first, last = 0, last - first
        run = self.rows[row][first:last + 1]
        now, rest = [v for v in run if v in other], [v for v in run if v not in other]
        if {*map(self._block, now)} & {*map(self._block, rest)}:
            return False
        self._replace(row, first, now + rest)
        return True

    def _turn(self, row: int, first: int) -> None:
        """The same period from its ``first`` operation on: what stood before is of the next micro-batch."""
        ops = self.rows[row]
        first %= len(ops)
        for block in ops[:first]:
            self.offset[row][block] += 1
        self._replace(row, 0, ops[first:] + ops[:first])

    def _keep_if_best(self) -> bool:
        if self.overflow > 0 or self.makespan >= self.best:
            return False
        self.best, self._best = self.makespan, [v for row in self.rows for v in row]
        if self.ring:
            self._best += [offset[v] for row, offset in zip(self.rows, self.offset, strict=True) for v in row]
        return True

    # -- the critical path ----------------------------------------------------------------------------------------

    def _critical(self) -> list[tuple[int, int]]:
        """The operations of the critical path to which a row leads, from its end on, each with that row."""
        if self.cyclic:
            return self.critical
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
