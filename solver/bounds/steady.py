"""The least time per micro-batch of any steady state, however many micro-batches its period has."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from weft.solver.bounds.memory import area_in, area_of_one, chains_of_one
from weft.solver.control.clock import checkpoint
from weft.solver.relations.difference_constraints import Constraint, longest_paths_or_cycle, ratio
from weft.solver.relations.graph import Graph, barriers, graph_of, without_barriers
from weft.solver.relations.implied_order import Order, implied_order
from weft.solver.ticks import TickProblem

__all__ = ["slowest_cycle", "steady_bound"]

_MANY = 2**20


def steady_bound(instance: TickProblem, order: Order | None = None) -> Fraction:
    """A lower bound on the time per micro-batch of any steady state, however many micro-batches a period has.

    The largest of: the work of the busiest device or link; per device, memory x time that a micro-batch takes up over
    the capacity; over the cycles of waits and of what memory makes precede what, length over micro-batches
    passed. All of them also with the time cut out in which all devices run one block, which is added again.
    ``order`` is the implied one, if known (that of few micro-batches holds for more).
    """
    if order is None:
        order = implied_order(instance, graph_of(instance), _MANY)
    barrier_blocks = barriers(instance)
    best = _steady(instance, order)
    if barrier_blocks:
        blocks = order[:len(instance.durations), :len(instance.durations)]
        cut = sum(instance.durations[i] for i in barrier_blocks)
        best = max(best, cut + _steady(without_barriers(instance, barrier_blocks), blocks))
    return best


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


def slowest_cycle(graph: Graph, order: Order, least: Fraction) -> list[Constraint] | None:
    """The cycle with the largest ratio of length to micro-batches passed, if that is more than ``least`` (> 0)."""
    # Edges within a micro-batch in topological order, so that one round of relaxation takes a path all the way.
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
