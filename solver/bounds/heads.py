"""The earliest start of each operation: longest paths over all micro-batches and one-machine bounds.

The head of an operation (node i of micro-batch m) is the largest of

* the head, length and delay of each operation it waits for, in its own micro-batch or an earlier one, and of each that
  precedes it on a machine (:mod:`weft.solver.relations.implied_order`);
* for each machine it runs on, the time at which that machine can have run all operations that must precede it there:
  the machine runs them one at a time, each not before its head, so from the least head e of any of them on, all with
  heads of e or more take up their total length: max over e of e + that length.

Tails, the least time from an operation's end to the end of the schedule, are the heads of the schedule run backwards.
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from weft.solver.control.clock import checkpoint
from weft.solver.relations.graph import RelationGraph
from weft.solver.relations.implied_order import Order

#: The head of an operation that may run at any time before the clock begins.
NEVER = -(1 << 60)
#: Nodes x micro-batches, in ticks.
Times = npt.NDArray[np.int64]


def heads(graph: RelationGraph, order: Order, micro_batches: int, crowded: int) -> Times:
    """The least start of every operation. The one-machine argument is used for the first ``crowded`` micro-batches."""
    found = Heads(graph, order, micro_batches)
    for m in range(micro_batches):
        found.raise_column(m, alone=m >= crowded)
    return found.head


class Heads:
    """Heads of all operations, raised micro-batch after micro-batch.

    They start at 0, or at ``least``. A caller with a better bound on an operation may raise its ``head`` before the
    operations that depend on it are raised.
    """

    def __init__(self, graph: RelationGraph, order: Order, micro_batches: int, least: Times | None = None) -> None:
        n = len(graph.durations)
        self.head: Times = np.zeros((n, micro_batches), dtype=np.int64) if least is None else least
        self._durations = np.array(graph.durations, dtype=np.int64)
        self._waits: list[list[tuple[int, int, int]]] = [[(i, 1, graph.durations[i])] for i in range(n)]
        for wait in graph.waits:
            self._waits[wait.target].append((wait.source, wait.distance, graph.durations[wait.source] + wait.lag))
        self._before: list[list[list[tuple[int, int]]]] = [[] for _ in range(n)]  # per machine: (node, distance)
        for machine in graph.machines:
            among = order[np.ix_(machine, machine)]
            for place, j in enumerate(machine):
                checkpoint()
                known = [(machine[i], int(among[i, place]))
                         for i in np.flatnonzero(among[:, place] < micro_batches).tolist()]
                self._before[j].append(known)
                self._waits[j] += [(i, distance, graph.durations[i]) for i, distance in known]
        # Precedence within a micro-batch is transitively closed, so counting it sorts the nodes.
        precede = np.count_nonzero(order == 0, axis=0).tolist()
        self._ranked = sorted(range(n), key=lambda j: (precede[j], j))

    def raise_column(self, m: int, *, alone: bool = False) -> None:
        """Raise the heads of micro-batch ``m`` as earlier ones imply; ``alone``: by longest paths only."""
        head = self.head
        for j in self._ranked:
            checkpoint()
            start = max((int(head[i, m - distance]) + rest for i, distance, rest in self._waits[j] if distance <= m),
                        default=int(head[j, m]))
            for known in () if alone else self._before[j]:
                start = max(start, self._all_run([(i, m - distance + 1) for i, distance in known]))
            head[j, m] = max(start, int(head[j, m]))

    def _all_run(self, counts: list[tuple[int, int]]) -> int:
        """The time at which a machine can have run the first ``count`` operations of each node, for all ``(node,
        count)``."""
        counts = [(i, count) for i, count in counts if count > 0]
        if len(counts) < 2:  # one node's own heads are that far apart already
            return NEVER
        starts = np.concatenate([self.head[i, :count] for i, count in counts])
        lengths = np.concatenate([np.broadcast_to(self._durations[i], count) for i, count in counts])
        ranked = np.argsort(starts)[::-1]
        return int((starts[ranked] + np.cumsum(lengths[ranked])).max())


def tails(graph: RelationGraph, order: Order, micro_batches: int, crowded: int) -> Times:
    """The least time from the end of every operation to the end of the schedule."""
    return heads(graph.mirrored, order.T, micro_batches, crowded)[:, ::-1]


def one_machine(runs: list[tuple[int, int, int]]) -> int:
    """The least makespan of one machine for ``(head, length, tail)`` if runs may be interrupted (Jackson, 1955).

    At any time it runs the available run with the longest tail.
    """
    waiting = sorted(runs, reverse=True)
    ready: list[tuple[int, int]] = []  # (-tail, length left)
    now = best = 0
    while waiting or ready:
        if not ready:
            now = max(now, waiting[-1][0])
        while waiting and waiting[-1][0] <= now:
            _, length, tail = waiting.pop()
            heapq.heappush(ready, (-tail, length))
        tail, left = heapq.heappop(ready)
        spent = min(left, waiting[-1][0] - now) if waiting else left
        now += spent
        if spent < left:
            heapq.heappush(ready, (tail, left - spent))
        else:
            best = max(best, now - tail)
    return best


def laid_out(graph: RelationGraph, head: Times, tail: Times) -> int:
    """The least makespan that all heads and tails leave: by one operation, and by each machine separately."""
    durations = np.array(graph.durations, dtype=np.int64)
    best = int((head + durations[:, None] + tail).max())
    for machine in graph.machines:
        checkpoint()
        best = max(best, one_machine([run for i in machine for run in
                                      zip(head[i].tolist(), [graph.durations[i]] * head.shape[1], tail[i].tolist(),
                                          strict=True)]))
    return best
