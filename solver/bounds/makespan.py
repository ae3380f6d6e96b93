"""The least makespan of N micro-batches: heads and tails of every operation, each machine between them, and memory.

Few micro-batches are laid out one by one. Of many, only the first and the last are; those in between count as

* the work of each machine: of the first micro-batches' operations only those with a head below some e can run before
  e, of the last ones' only those with a tail below some t can run in the last t ticks, hence makespan >=
  (e - length of the former) + N x load + (t - length of the latter), for the best e and the best t;
* the cycle of waits that is longest for the micro-batches it passes, one round after another.

The least time per micro-batch of any steady state, however many micro-batches its period has.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from weft.solver.bounds.heads import Times, heads, laid_out, tails
from weft.solver.bounds.load import exact_load_bound
from weft.solver.bounds.memory import area_in, area_of_one, bound_in, chains_of_one, memory_bound
from weft.solver.control.clock import checkpoint
from weft.solver.relations.difference_constraints import Constraint, longest_paths_or_cycle, ratio
from weft.solver.relations.graph import Contracted, RelationGraph, contractions, graph_of
from weft.solver.relations.implied_order import Order, implied_order
from weft.solver.ticks import TickProblem

#: Up to this number, operations are laid out one by one.
_LAID_OUT = 4000
#: The number of runs of operations on machines for which the one-machine argument raises heads (and tails).
_CROWDED = 2000


def makespan_bound(instance: TickProblem, micro_batches: int, order: Order | None = None) -> Fraction:
    """A lower bound on the makespan of ``micro_batches`` micro-batches, in ticks. ``order``: the implied one."""
    if order is None:
        order = implied_order(instance, graph_of(instance), micro_batches)
    return Fraction(by_contraction(instance, micro_batches, order)[0][0])


def by_contraction(instance: TickProblem, micro_batches: int, order: Order) -> list[tuple[int, Contracted]]:
    """The bound by ``instance`` and by each of its contractions, the best first."""
    n = len(instance.durations)
    bounds = [(micro_batches * each.cut + _bound(each.instance, micro_batches, order[:n, :n] if each.cut else order),
               each) for each in contractions(instance)]
    return sorted(bounds, key=lambda bound: -bound[0])


def least_time(instance: TickProblem, micro_batches: int) -> float:
    """:func:`makespan_bound` in the problem's time unit; if ticks have rounded the times, not below the bound by the
    devices' work in exact times."""
    bound = instance.bound(makespan_bound(instance, micro_batches), micro_batches)
    return bound if not instance.loss else max(bound, float(exact_load_bound(instance.problem, micro_batches)))


def _bound(instance: TickProblem, micro_batches: int, order: Order) -> int:
    graph = graph_of(instance)
    shown = max(4, _LAID_OUT // len(graph.durations))
    if 2 * shown >= micro_batches:
        shown = micro_batches
    crowded = max(2, _CROWDED // sum(map(len, graph.machines)))
    head, tail = heads(graph, order, shown, crowded), tails(graph, order, shown, crowded)
    bounds = [_links(instance, micro_batches)]
    if shown == micro_batches:
        bounds.append(laid_out(graph, head, tail))
    else:
        bounds += [busy(graph, machine, micro_batches, head, tail) for machine in graph.machines if machine]
        bounds.append(_round_and_round(graph, order, micro_batches, head, tail))
    lags = chains_of_one(instance)
    for device in instance.distinct_devices:
        checkpoint()
        area = area_of_one(instance, device, lags)
        if area is not None:
            bounds.append(memory_bound(instance, device, area, micro_batches, head, tail))
    for pool in instance.mixed_pools:
        area = area_in(instance, pool.take, pool.change, lags)
        if area is not None and pool.capacity:
            bounds.append(bound_in(pool.take, pool.change, pool.capacity, area, micro_batches, head, tail))
    return max(bounds)


def busy(graph: RelationGraph, machine: tuple[int, ...], micro_batches: int, head: Times, tail: Times) -> int:
    """The work of a machine, with the time it must idle at the beginning and at the end: ``head`` and ``tail`` are
    those of the first and of the last micro-batches."""
    def idle(times: Times) -> int:  # rising
        until = int(times[:, -1].min())  # later ones have no smaller head
        ranked = sorted((int(at), graph.durations[i]) for i, row in zip(machine, times, strict=True) for at in row)
        most = work = 0
        for at, duration in ranked:
            if at > until:
                break
            most = max(most, at - work)
            work += duration
        return most

    nodes = list(machine)
    return idle(head[nodes]) + micro_batches * sum(graph.durations[i] for i in machine) + idle(tail[nodes, ::-1])


def _round_and_round(graph: RelationGraph, order: Order, micro_batches: int, head: Times, tail: Times) -> int:
    """From an early operation round the slowest cycle, as often as there are micro-batches for, to a late one."""
    load = max([1, *(sum(graph.durations[i] for i in machine) for machine in graph.machines)])
    cycle = slowest_cycle(graph, order, Fraction(load))
    if cycle is None:
        return 0
    length, passed = sum(edge.weight for edge in cycle), sum(edge.height for edge in cycle)
    shown = head.shape[1]
    best = 0
    for i in {edge.source for edge in cycle}:
        checkpoint()
        for first in range(shown):
            rounds = (micro_batches - 1 - first) // passed
            left = micro_batches - 1 - first - rounds * passed  # micro-batches after the last one reached
            more = max(0, left + 1 - shown)  # of those, as many as have no tail: the block runs them one by one
            end = (1 + more) * graph.durations[i] + int(tail[i, more - 1 - left])
            best = max(best, int(head[i, first]) + rounds * length + end)
    return best


def _links(instance: TickProblem, micro_batches: int) -> int:
    """The work of the busiest link; transfers to later micro-batches included, as often as they take place."""
    work = [0] * len(instance.problem.links)
    for arc in instance.arcs:
        if arc.link is not None:
            work[arc.link] += arc.lag * max(0, micro_batches - arc.distance)
    return max(work, default=0)


_MANY = 2**20


def steady_bound(instance: TickProblem, order: Order | None = None) -> Fraction:
    """A lower bound on the time per micro-batch of any steady state, however many micro-batches a period has.

    The largest of: the work of the busiest device or link; per device, memory x time that a micro-batch takes up over
    the capacity; over the cycles of waits and of precedences by memory, length over micro-batches passed. All of them
    also with the time cut out in which all devices run one block, which is added again. ``order`` is the implied one,
    if known (that of few micro-batches is valid for more).
    """
    if order is None:
        order = implied_order(instance, graph_of(instance), _MANY)
    n = len(instance.durations)
    return max(each.cut + _steady(each.instance, order[:n, :n] if each.cut else order)
               for each in contractions(instance))


def _steady(instance: TickProblem, order: Order) -> Fraction:
    lags = chains_of_one(instance)
    best = Fraction(instance.heaviest_load)
    for device in instance.distinct_devices:
        checkpoint()
        capacity = instance.capacity[device]
        area = area_of_one(instance, device, lags)
        if area is not None and capacity:
            best = max(best, Fraction(area, capacity))
    for pool in instance.mixed_pools:
        area = area_in(instance, pool.take, pool.change, lags)
        if area is not None and pool.capacity:
            best = max(best, Fraction(area, pool.capacity))
    cycle = slowest_cycle(graph_of(instance), order, best)
    return best if cycle is None else ratio(cycle)


def slowest_cycle(graph: RelationGraph, order: Order, least: Fraction) -> list[Constraint] | None:
    """The cycle with the largest ratio of length to micro-batches passed, if that is more than ``least`` (> 0)."""
    # Edges within a micro-batch in topological order, so that one round of relaxation covers a whole path.
    rank = np.count_nonzero(order == 0, axis=0)
    edges = {(wait.source, wait.target, wait.distance): graph.durations[wait.source] + wait.lag
             for wait in reversed(sorted(graph.waits, key=lambda wait: -wait.lag))}
    for machine in graph.machines:
        checkpoint()
        among = order[np.ix_(machine, machine)]
        for a, b in np.argwhere(among < _MANY).tolist():
            edges.setdefault((machine[a], machine[b], int(among[a, b])), graph.durations[machine[a]])
    queue = sorted((Constraint(i, j, weight, height) for (i, j, height), weight in edges.items()),
                   key=lambda edge: (int(rank[edge.source]), edge.source, edge.target, edge.height))
    found = None
    while True:
        _, cycle = longest_paths_or_cycle(len(graph.durations), queue, least)
        if cycle is None:
            return found
        found, least = cycle, ratio(cycle)
