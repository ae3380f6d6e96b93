"""The devices of a pipeline in the order in which it runs through them."""

from __future__ import annotations

import numpy as np

from weft.solver.ticks import TickProblem

__all__ = ["both_ways"]


def both_ways(instance: TickProblem) -> list[list[int]]:
    """The devices from the one where micro-batches come in on, and from the one furthest from it."""
    first = next(device for device, on in enumerate(instance.blocks_on)
                 if instance.problem.topological_order[0] in on)
    forth = _outward(instance, first)
    return [forth, _outward(instance, forth[-1])]


def _outward(instance: TickProblem, first: int) -> list[int]:
    """All devices from ``first`` on, always the one that exchanges most with those before it."""
    count = len(instance.capacity)
    runs_on = [block.devices for block in instance.problem.blocks]
    exchanged = np.zeros((count, count), dtype=np.int64)
    for arc in instance.arcs:
        if len(runs_on[arc.source]) == len(runs_on[arc.target]) == 1:  # blocks on all devices tell none apart
            (a,), (b,) = runs_on[arc.source], runs_on[arc.target]
            exchanged[a, b] += 1
            exchanged[b, a] += 1
    order, with_placed = [first], exchanged[first].copy()
    left = set(range(count)) - {first}
    while left:
        order.append(min(left, key=lambda device: (-with_placed[device], abs(device - order[-1]), device)))
        left.remove(order[-1])
        with_placed += exchanged[order[-1]]
    return order
