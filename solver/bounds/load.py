"""The least makespan by each device's work alone, and what must come before and after it: a bound at the price of a
look at each block.

No block of a device starts before the longest chain of blocks of its micro-batch that lead to it, and after the last
one ends still the shortest of the chains that follow is to run; in between the device runs all micro-batches of all its
blocks. Where blocks hold every device, time is cut into what they take and the rest, in which they take none
(:func:`solver.bounds.graph.without_common` has the argument). Memory and order do not count here: the bound is for
telling which of many problems need no closer look.
"""

from __future__ import annotations

from solver.instance import Instance
from solver.problem import Problem

__all__ = ["load_bound", "work_bound"]

#: Floats are added up here: what is claimed is that much less.
_ROUNDING = 1e-9


def load_bound(problem: Problem, micro_batches: int) -> float:
    """A lower bound on the makespan of ``micro_batches`` micro-batches, in the problem's time unit."""
    used = {d for block in problem.blocks for d in block.devices}
    common = frozenset(block.name for block in problem.blocks if used <= set(block.devices)) if len(used) > 1 else ()
    bound = _busiest(problem, micro_batches, frozenset())
    if common:
        cut = sum(block.duration for block in problem.blocks if block.name in common)
        bound = max(bound, micro_batches * cut + _busiest(problem, micro_batches, frozenset(common)))
    return bound * (1 - _ROUNDING)


def work_bound(instance: Instance, micro_batches: int) -> int:
    """A lower bound on the makespan of ``micro_batches`` micro-batches, in ticks: the same but for blocks on every
    device, in whole numbers."""
    durations, order = instance.durations, instance.problem.topological_order
    before: list[list[tuple[int, int]]] = [[] for _ in durations]
    for arc in instance.arcs:
        if not arc.distance:
            before[arc.target].append((arc.source, arc.lag))
    head, tail = [0] * len(durations), [0] * len(durations)
    for i in order:
        head[i] = max((head[j] + durations[j] + lag for j, lag in before[i]), default=0)
    for i in reversed(order):
        for j, lag in before[i]:
            tail[j] = max(tail[j], tail[i] + durations[i] + lag)
    chain = max(head[i] + durations[i] + tail[i] for i in order)
    loads = (min(head[i] for i in on) + micro_batches * sum(durations[i] for i in on) + min(tail[i] for i in on)
             for on in set(instance.blocks_on) if on)
    return max(chain, *loads)


def _busiest(problem: Problem, micro_batches: int, common: frozenset[str]) -> float:
    """The bound by the busiest device. Blocks of ``common`` take no time, and where there are any, transfers none."""
    length = [0.0 if block.name in common else float(block.duration) for block in problem.blocks]
    lag = 0.0 if common else 1.0
    head, tail = [0.0] * len(length), [0.0] * len(length)
    order = problem.topological_order
    for i in order:
        for wait in problem.blocks[i].after:
            if not wait.distance:
                before = problem.index[wait.block]
                head[i] = max(head[i], head[before] + length[before] + lag * wait.lag)
    for i in reversed(order):
        for wait in problem.blocks[i].after:
            if not wait.distance:
                before = problem.index[wait.block]
                tail[before] = max(tail[before], tail[i] + length[i] + lag * wait.lag)
    bound = max((head[i] + length[i] + tail[i] for i in order), default=0.0)
    for blocks in problem.blocks_on:
        timed = [i for i in blocks if length[i]]
        if timed:
            bound = max(bound, min(head[i] for i in timed) + micro_batches * sum(length[i] for i in timed)
                        + min(tail[i] for i in timed))
    return bound
