"""The least span of N micro-batches: how soon a step can follow another, whatever the order.

The *span* is the longest time for which a machine (a device or a link) is busy with one step, from its first start to
its last end (:mod:`weft.solver.relations.spans`). Three arguments:

* *Steps as a steady state.* Steps that follow each other every T, the span, are a schedule of any number of
  micro-batches: each machine runs one step after the other, so nothing overlaps, blocks run in micro-batch order, and
  the memory that a step gives back is available on a device when its next step begins. So T >= N x the least time per
  micro-batch of any steady state (:mod:`weft.solver.bounds.makespan`). This requires that micro-batches give back what
  they take, and that nothing waits for another micro-batch's work: the first of a step would not.
* *A machine's own clock.* Count time from the first start of machine r: its operations have heads of 0 or more, and
  their successors, on any machine, have the heads that this implies (:mod:`weft.solver.bounds.heads`); other operations
  are not bounded. Likewise back from the last end of machine s. An operation with a head h by the clock of r and a tail
  t by that of s implies that the time from the first start of r to the last end of s is at least h + its length + t,
  and so does any one machine's work between such heads and tails, D[r, s]. D[r, r] bounds the span. Of many
  micro-batches the first and the last are laid out, as for the makespan (:func:`weft.solver.bounds.makespan.busy`).
* *Two clocks and more.* Machine s begins no earlier than its last end less the span: start(s) >= start(r) + D[r, s]
  - T. Once round a cycle of machines this says k T >= the sum of D. So T is at least the largest mean of D over the
  cycles of machines, which is exact for one order and a bound here.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from weft.solver.bounds.heads import NEVER, Heads, Times, one_machine
from weft.solver.bounds.makespan import busy, steady_bound
from weft.solver.control.clock import checkpoint
from weft.solver.relations.difference_constraints import Constraint, longest_paths_or_cycle, ratio
from weft.solver.relations.graph import RelationGraph, graph_of
from weft.solver.relations.implied_order import Order
from weft.solver.ticks import TickProblem

#: Up to these numbers, operations are laid out one by one: by the clock of one machine; and by those of all, the
#: busiest machines first.
_LAID_OUT, _CLOCKS = 4000, 40_000
#: The number of runs of operations on machines for which the one-machine argument raises heads, by one clock.
_CROWDED = 500
#: Up to this number, runs are put on one machine between two clocks.
_RUNS = 100_000


def span_bound(instance: TickProblem, micro_batches: int, order: Order) -> Fraction:
    """A lower bound on the span of ``micro_batches`` micro-batches, in ticks. ``order`` is the implied one."""
    best = Fraction(work_of_busiest(instance, micro_batches))
    if instance.balanced and not any(arc.distance for arc in instance.arcs):
        best = max(best, micro_batches * steady_bound(instance, order))
    graph = graph_of(instance)
    shown = max(4, _LAID_OUT // len(graph.durations))
    if 2 * shown >= micro_batches:
        shown = micro_batches
    machines = sorted((machine for machine in graph.machines if machine),
                      key=lambda machine: -sum(graph.durations[i] for i in machine))
    machines = machines[:max(1, _CLOCKS // (len(graph.durations) * shown))]
    heads = [_heads(graph, order, shown, machine) for machine in machines]
    tails = [_heads(graph.mirrored, order.T, shown, machine)[:, ::-1] for machine in machines]
    if shown < micro_batches:
        return max([best, *(Fraction(busy(graph, machine, micro_batches, head, tail))
                            for machine, head, tail in zip(machines, heads, tails, strict=True))])
    runs = sum(map(len, machines)) * micro_batches * len(machines)
    waits = []
    for r, head in enumerate(heads):
        for s, tail in enumerate(tails):
            checkpoint()
            among = {machines[r], machines[s]} if r == s or runs <= _RUNS else set()
            least = _between(graph, head, tail, among)
            if least is not None:
                waits.append(Constraint(r, s, least, 1))
    return _largest_mean(len(machines), waits, best)


def work_of_busiest(instance: TickProblem, micro_batches: int) -> int:
    """Ticks of work of the busiest device or link."""
    carried = [0] * len(instance.problem.links)
    for arc in instance.arcs:
        if arc.link is not None:
            carried[arc.link] += arc.lag * max(0, micro_batches - arc.distance)
    return max([*(micro_batches * instance.load(d) for d in instance.distinct_devices), *carried])


def _heads(graph: RelationGraph, order: Order, micro_batches: int, machine: tuple[int, ...]) -> Times:
    """The least starts by the clock of ``machine``; :data:`NEVER` or little more for operations that may run before."""
    least: Times = np.full((len(graph.durations), micro_batches), NEVER, dtype=np.int64)
    least[list(machine)] = 0
    found = Heads(graph, order, micro_batches, least)
    crowded = max(2, _CROWDED // sum(map(len, graph.machines)))
    for m in range(micro_batches):
        found.raise_column(m, alone=m >= crowded)
    return found.head


def _between(graph: RelationGraph, head: Times, tail: Times, machines: set[tuple[int, ...]]) -> int | None:
    """The least time between two clocks: by one operation, and by the work of each of ``machines``; ``None`` if no
    operation has a head by the one and a tail by the other."""
    known = (head > NEVER // 2) & (tail > NEVER // 2)
    if not known.any():
        return None
    durations = np.array(graph.durations, dtype=np.int64)
    best = int((head + durations[:, None] + tail)[known].max())
    for machine in machines:
        best = max(best, one_machine([(int(head[i, m]), graph.durations[i], int(tail[i, m]))
                                      for i in machine for m in np.flatnonzero(known[i]).tolist()]))
    return best


def _largest_mean(count: int, waits: list[Constraint], least: Fraction) -> Fraction:
    """The largest mean weight of a cycle, if it is more than ``least``."""
    while True:
        _, cycle = longest_paths_or_cycle(count, waits, least)
        if cycle is None:
            return least
        least = ratio(cycle)
