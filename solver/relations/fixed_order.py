"""Longest paths through a schedule whose device orders are fixed, in ticks: heads, tails and paths between two
parts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

from weft.solver.control.clock import checked, checkpoint
from weft.solver.pools import PooledOrders
from weft.solver.ticks import Arc, TickProblem
from weft.solver.timing import DeadlockError, Orders

#: (block, micro-batch)
Op: TypeAlias = tuple[int, int]
#: An operation, or a transfer on a link: (~arc number, producer's micro-batch).
Node: TypeAlias = tuple[int, int]


class FixedOrder:
    """Earliest ``start`` and ``tail`` (longest path from an operation's start to the end) under ``orders``, and their
    waits for the memory of lanes (:class:`~weft.solver.pools.PooledOrders`).

    ``in_order`` are all operations and transfers, each after those it waits for; :meth:`follow` returns those after it.

    Raises :class:`~weft.solver.timing.DeadlockError` if the orders contradict the dependencies.
    """

    def __init__(self, instance: TickProblem, micro_batches: int, orders: Orders) -> None:
        self.instance = instance
        self.micro_batches = micro_batches
        self.orders = orders
        self.arcs_from: list[list[Arc]] = [[] for _ in instance.blocks]
        self._arcs_to: list[list[tuple[int, Arc]]] = [[] for _ in instance.blocks]
        self.linked_arcs_from: list[list[tuple[int, Arc]]] = [[] for _ in instance.blocks]
        for number, arc in enumerate(instance.arcs):
            self.arcs_from[arc.source].append(arc)
            self._arcs_to[arc.target].append((number, arc))
            if arc.link is not None:
                self.linked_arcs_from[arc.source].append((number, arc))
        self._follow()
        self._time()

    def _follow(self) -> None:
        """Successors of every operation and transfer: node -> [(node, distance between starts)]."""
        durations = self.instance.durations
        self._next: dict[Node, list[tuple[Node, int]]] = {}
        for row in self.orders:
            for op in row:
                self._next.setdefault(op, [])
            for before, after in pairwise(row):
                self._next[before].append((after, durations[before[0]]))
        for giver, taker in self.orders.waits if isinstance(self.orders, PooledOrders) else ():
            self._next[giver].append((taker, durations[giver[0]]))
        for op in list(self._next):
            block, m = op
            for arc in self.arcs_from[block]:
                if arc.link is None and m + arc.distance < self.micro_batches:
                    self._next[op].append(((arc.target, m + arc.distance), durations[block] + arc.lag))
        self._queues: dict[int, list[tuple[int, int]]] = {}  # per link: (arc number, producer's micro-batch)
        for link, ends in enumerate(self.instance.problem.links):
            queue = [(number, m) for block, m in self.orders[ends.source]
                     for number, arc in self.linked_arcs_from[block]
                     if arc.link == link and m + arc.distance < self.micro_batches]
            self._queues[link] = queue
            for number, m in queue:
                arc = self.instance.arcs[number]
                self._next[arc.source, m].append(((~number, m), durations[arc.source]))
                self._next[~number, m] = [((arc.target, m + arc.distance), arc.lag)]
            for (number, m), (other, k) in pairwise(queue):
                self._next[~number, m].append(((~other, k), self.instance.arcs[number].lag))

    def _time(self) -> None:
        waits = dict.fromkeys(self._next, 0)
        for successors in self._next.values():
            for node, _ in successors:
                waits[node] += 1
        at = dict.fromkeys(self._next, 0)
        ready = [node for node, count in waits.items() if not count]
        order: list[Node] = []
        while ready:
            if not len(order) & 4095:
                checkpoint()
            node = ready.pop()
            order.append(node)
            for successor, distance in self._next[node]:
                at[successor] = max(at[successor], at[node] + distance)
                waits[successor] -= 1
                if not waits[successor]:
                    ready.append(successor)
        if len(order) < len(self._next):
            raise DeadlockError("the device orders wait for each other in a circle")
        self.in_order = order
        tail: dict[Node, int] = {}
        for node in checked(reversed(order), 4096):
            tail[node] = max([self.length(node),
                              *(distance + tail[successor] for successor, distance in self._next[node])])
        self.start: dict[Op, int] = {node: at[node] for node in order if node[0] >= 0}
        self.tail: dict[Op, int] = {node: tail[node] for node in order if node[0] >= 0}
        self._begin = {(~node[0], node[1]): at[node] for node in order if node[0] < 0}
        self._transfer_tail = {(~node[0], node[1]): tail[node] for node in order if node[0] < 0}
        self.makespan = max(start + self.instance.durations[op[0]] for op, start in self.start.items())

    def follow(self, node: Node) -> Sequence[tuple[Node, int]]:
        """The operations and transfers that wait for ``node``, with the distance between their starts."""
        return self._next[node]

    def length(self, node: Node) -> int:
        """The length of an operation or transfer."""
        return self.instance.durations[node[0]] if node[0] >= 0 else self.instance.arcs[~node[0]].lag

    def queue(self, link: int) -> Sequence[Node]:
        """The transfers of a link, in order."""
        return [(~number, m) for number, m in self._queues[link]]

    def longest_between(self, earlier: Collection[Op], later: Collection[Op]) -> int:
        """The longest path that goes from an earlier operation straight to a later one (or ends there)."""
        longest = max([0, *(self.link_free(link, earlier) + self.link_tail(link, later) for link in self._queues)])
        for op in checked(earlier, 256):
            longest = max([longest, self.start[op] + self.instance.durations[op[0]],
                           *(self.start[op] + self.instance.durations[op[0]] + rest
                             for rest in self.departures(op, later))])
            for number, arc in self.linked_arcs_from[op[0]]:
                consumer = (arc.target, op[1] + arc.distance)
                if consumer in later:
                    longest = max(longest, self._begin[number, op[1]] + arc.lag + self.tail[consumer])
        return longest

    def arrivals(self, op: Op, earlier: Collection[Op]) -> Iterator[int]:
        """Times at which the inputs of ``op`` from ``earlier`` operations are available."""
        block, m = op
        for device in self.instance.problem.blocks[block].devices:
            last = self._last(device, earlier)
            if last is not None:
                yield self.start[last] + self.instance.durations[last[0]]
        for number, arc in self._arcs_to[block]:
            producer = (arc.source, m - arc.distance)
            if producer not in earlier:
                continue
            if arc.link is None:
                yield self.start[producer] + self.instance.durations[arc.source] + arc.lag
            else:
                yield self._begin[number, producer[1]] + arc.lag

    def departures(self, op: Op, later: Collection[Op]) -> Iterator[int]:
        """Longest paths from ``op``'s end through ``later`` operations (without transfers on links)."""
        block, m = op
        for device in self.instance.problem.blocks[block].devices:
            first = self._first(device, later)
            if first is not None:
                yield self.tail[first]
        for arc in self.arcs_from[block]:
            if arc.link is None and (arc.target, m + arc.distance) in later:
                yield arc.lag + self.tail[arc.target, m + arc.distance]

    def transfer(self, number: int, micro_batch: int) -> int | None:
        """The begin of the transfer under the given orders; None if it does not take place."""
        return self._begin.get((number, micro_batch))

    def link_free(self, link: int, earlier: Collection[Op]) -> int:
        """The time at which the link has carried all transfers of ``earlier`` producers."""
        return max([0, *(self._begin[number, m] + self.instance.arcs[number].lag for number, m in self._queues[link]
                         if (self.instance.arcs[number].source, m) in earlier)])

    def link_tail(self, link: int, later: Collection[Op]) -> int:
        """The longest path from the first transfer of a ``later`` producer on the link."""
        return max([0, *(self._transfer_tail[number, m] for number, m in self._queues[link]
                         if (self.instance.arcs[number].source, m) in later)])

    def _last(self, device: int, earlier: Collection[Op]) -> Op | None:
        return next((op for op in reversed(self.orders[device]) if op in earlier), None)

    def _first(self, device: int, later: Collection[Op]) -> Op | None:
        return next((op for op in self.orders[device] if op in later), None)
