"""Rows of operations and when these start, in Python: what the twin (:mod:`weft.solver.orders.twin`) moves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from weft.solver.orders.tables import Tables
from weft.solver.pools import Op
from weft.solver.relations.difference_constraints import Constraint, longest_paths_or_cycle, ratio
from weft.solver.relations.pool_pass import PoolPass
from weft.solver.timing import Orders

#: The makespan of orders that wait for each other in a circle.
NEVER = (2**63 - 1) // 4


@dataclass(frozen=True, slots=True)
class _Arc:
    source: int
    target: int
    distance: int
    link: int
    lag: int
    node: int  # of its transfers, as a block has one for its operations; -1 without a link


@dataclass(frozen=True, slots=True)
class _Wait(Constraint):
    row: int  # that says so, and may say otherwise; or -1


class TimedRows:
    """The orders of one problem. Nodes are operations ``block * micro_batches + m``, and behind them the transfers on
    links."""

    def __init__(self, tables: Tables) -> None:
        self.tables, self.count = tables, tables.micro_batches
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
        self.ring = tables.objective == "period"
        self.cyclic = tables.objective != "makespan"
        #: Some blocks are in several rows, and times say where each row has its turn.
        self.several = not self.ring and any(len(rows) > 1 for rows in self.rows_of)
        self.lengths = [len(row) * self.count for row in tables.rows]
        self.begin = [0, *np.cumsum(self.lengths, dtype=np.int64).tolist()]
        self.link_row: list[int] = tables.link_row.tolist()
        self.memories = list(zip(tables.memory_row.tolist(), tables.capacity.tolist(), tables.take.tolist(),
                                 tables.change.tolist(), strict=True))
        self.pools = tables.instance.mixed_pools
        self.nodes = linked * self.count
        self.rows: list[list[int]] = [[] for _ in tables.rows]
        self.place: list[dict[int, int]] = [{} for _ in tables.rows]  # per row, where each operation stands
        #: For periods: per row, the micro-batch of each block in a period.
        self.offset: list[dict[int, int]] = [dict.fromkeys(row, 0) for row in tables.rows]
        self.start: dict[int, int] = {}
        self.before_on_link: dict[int, int] = {}
        self.cause: dict[int, int] = {}  # with pools: whose end made room for an operation
        self.critical: list[tuple[int, int]] = []  # with cycles: where the longest goes along rows
        self.makespan = NEVER  # or the span, or the period
        self.overflow = 0.0

    def _block(self, op: int) -> int:
        return op // self.count

    def _put(self, rows: list[list[int]]) -> None:
        self.rows = rows
        self.place = [{v: at for at, v in enumerate(row)} for row in rows]

    def _replace(self, row: int, first: int, now: list[int]) -> None:
        self.rows[row][first:first + len(now)] = now
        self.place[row].update((v, first + k) for k, v in enumerate(now))

    def _overflow(self) -> float:
        """By how much the orders exceed their memories, added up over all operations."""
        over = 0.0
        for row, capacity, take, change in self.memories:
            level = sum(change[block] * m for block, m in self.offset[row].items())  # when a period begins
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
                    if arc.link >= 0 and self.link_row[arc.link] == row and self._sent(arc, m):
                        node = arc.node * self.count + m
                        if arc.link in last:
                            self.before_on_link[node] = last[arc.link]
                        last[arc.link] = node

    def _time(self) -> bool:
        """Time all nodes; whether none waits for itself, or for room that nobody makes."""
        self._queue_transfers()
        if self.cyclic:
            return self._raise_to_cycles()
        start = self._pass_through_time() if self.pools else self._longest_paths()
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

    # -- spans and periods: the largest ratio of a cycle -----------------------------------------------------------

    def _at_first(self) -> dict[int, int] | None:
        """Times by which all that waits is in order, more or less; None where something waits for itself."""
        self._queue_transfers()
        return dict.fromkeys([*range(self.operations), *self.of_node], 0) if self.ring else self._longest_paths()

    def _raise_to_cycles(self) -> bool:
        """The least whole span or period, and the times then; whether there is any."""
        waits, critical, value = [*self._waits()], list[_Wait](), int(self.tables.least[0])
        while True:
            start, cycle = longest_paths_or_cycle(self.nodes, waits, Fraction(value))
            if cycle is None:
                self.start, self.makespan = {v: int(start[v]) for v in self.start}, value
                self.critical = [(wait.target, wait.row) for wait in critical if wait.row >= 0]
                return True
            if sum(wait.height for wait in cycle) <= 0:
                return False
            critical, value = cycle, math.ceil(ratio(cycle))

    def _waits(self) -> Iterator[_Wait]:
        """All that waits, in the order of the times known last; after the last of a row, or of a link, comes the first
        of the next period."""
        first = {self.of_node[v // self.count].link: v for v in self.start
                 if v >= self.operations and v not in self.before_on_link}
        after = {before: v for v, before in self.before_on_link.items()}
        for v in sorted(self.start, key=lambda v: (self.start[v], v)):
            block, m = divmod(v, self.count)
            if v >= self.operations:
                arc = self.of_node[block]
                offset, following = self.offset[self.link_row[arc.link]], after.get(v, first[arc.link])
                yield self._served(v, arc, m, arc.lag)
                height = offset[self.of_node[following // self.count].source] - offset[arc.source] + (v not in after)
                yield _Wait(v, following, arc.lag, height, -1)
                continue
            for row in self.rows_of[block]:
                at, ops, offset = self.place[row][v] + 1, self.rows[row], self.offset[row]
                last = at == len(ops)
                following = ops[0 if last else at]
                yield _Wait(v, following, self.duration[block], offset[following // self.count] - offset[block] + last,
                            -1 if last and not self.ring else row)
            for arc in self.out[block]:
                if arc.link < 0 and self._sent(arc, m):
                    yield self._served(v, arc, m, self.duration[block] + arc.lag)
                elif self._sent(arc, m):
                    yield _Wait(v, arc.node * self.count + m, self.duration[block], 0, -1)

    def _served(self, node: int, arc: _Arc, m: int, length: int) -> _Wait:
        """What waits at the end of ``arc``, ``length`` after the start of ``node``."""
        if self.ring:
            return _Wait(node, arc.target, length, arc.distance, -1)
        return _Wait(node, arc.target * self.count + m + arc.distance, length, 0, -1)

    def _sent(self, arc: _Arc, m: int) -> bool:
        return self.ring or m + arc.distance < self.count

    def _pass_through_time(self) -> dict[int, int] | None:
        """Of what may start at one time, the first micro-batch first."""
        rows: Orders = [[divmod(v, self.count) for v in self.rows[row]] for row in self.tables.row_of]
        order = sorted(((block, m) for block in range(len(self.duration)) for m in range(self.count)),
                       key=lambda op: (op[1], op[0]))
        one = PoolPass(self.tables.instance, self.count, self.pools, order, rows, safe=False)
        found = one.run()
        self.cause = {self._number(op): self._number(giver) for op, giver in one.cause.items()}
        return None if found is None else {**{self._number(op): at for op, at in found.items()}, **{
            self.arcs[arc].node * self.count + m: at for (arc, m), at in one.sent.items()}}

    def _number(self, op: Op) -> int:
        return op[0] * self.count + op[1]
