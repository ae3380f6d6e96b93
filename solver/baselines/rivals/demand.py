"""Orders of a micro-batch's blocks that take memory late: each right behind what it waits for, by several preferences,
or as late as it can."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from weft.solver.late import nx
from weft.solver.ticks import TickProblem

__all__ = ["block_places", "demanded"]


def block_places(instance: TickProblem) -> list[tuple[float, ...]]:
    """Where each block begins in a micro-batch of length 1, in different ways that keep to what it waits for: blocks
    one after the other in the order of the file, and as :func:`demanded` by all keys, for the last blocks and for all;
    each also with the parts side by side that have nothing to do with each other; and all blocks as late as the longest
    way to the end allows."""
    waited_for = {arc.source for arc in instance.arcs if not arc.distance}
    last = [i for i in instance.blocks if i not in waited_for]
    found = [instance.problem.topological_order, *(
        tuple(demanded(instance, key, roots)) for key in _keys(instance) for roots in (last, instance.blocks))]
    part = _parts(instance)
    return list(dict.fromkeys([*(places for order in dict.fromkeys(found) for places in (
        _begins(instance, order, [0] * len(order)), _begins(instance, order, part))), _latest(instance)]))


def demanded(instance: TickProblem, key: Sequence[tuple[float, ...]], roots: Iterable[int]) -> list[int]:
    """``roots`` by ``key`` and, right before each, what it waits for and is not there yet, again by ``key``."""
    wanted = set(roots)
    after: list[list[int]] = [[-1] if i in wanted else [] for i in instance.blocks]
    for arc in instance.arcs:
        if not arc.distance:
            after[arc.source].append(arc.target)
    needs: nx.DiGraph[int] = nx.DiGraph()
    for i in sorted(instance.blocks, key=lambda i: (key[i], i)):
        needs.add_edges_from((j, i) for j in after[i])
    return [i for i in nx.dfs_postorder_nodes(needs, -1) if i >= 0]


def _keys(instance: TickProblem) -> Iterator[list[tuple[float, ...]]]:
    """By file; by what a block and all that it waits for keep, the least first; by Johnson's rule; by both."""
    whole, blocks = instance.in_sequence, instance.blocks
    head, rest, held = [0] * len(blocks), [0] * len(blocks), [0.0] * len(blocks)
    waits: list[list[tuple[int, int]]] = [[] for _ in blocks]
    waiters = [0] * len(blocks)
    for arc in instance.arcs:
        if not arc.distance:
            waits[arc.target].append((arc.source, arc.lag))
            waiters[arc.source] += 1
    for i in instance.problem.topological_order:
        head[i] = max((head[j] + instance.durations[j] + lag for j, lag in waits[i]), default=0)
        if waits[i]:
            rest[i] = instance.durations[i] + min(rest[j] for j, _ in waits[i])
        changes = sum(change[i] for change, capacity in zip(whole.change, whole.capacity, strict=True)
                      if capacity is not None and i in change)
        held[i] = round(changes + sum(held[j] / waiters[j] for j, _ in waits[i]), 6)
    johnson = [(0, before) if before < after else (1, -after) for before, after in zip(head, rest, strict=True)]
    yield [()] * len(blocks)
    yield [(amount,) for amount in held]
    yield list(johnson)
    yield [(amount, *times) for amount, times in zip(held, johnson, strict=True)]


def _parts(instance: TickProblem) -> list[int]:
    """Which of the parts that have nothing to do with each other each block is of."""
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(instance.blocks)
    graph.add_edges_from((arc.source, arc.target) for arc in instance.arcs)
    part = [0] * len(instance.blocks)
    for number, members in enumerate(nx.connected_components(graph)):
        for i in members:
            part[i] = number
    return part


def _begins(instance: TickProblem, order: Sequence[int], part: Sequence[int]) -> tuple[float, ...]:
    """Where each block begins if every part, in ``order``, has the length 1."""
    length = [0] * len(order)
    begins = [0] * len(order)
    for i in order:
        begins[i] = length[part[i]]
        length[part[i]] += instance.durations[i]
    return tuple(begins[i] / length[part[i]] for i in instance.blocks)


def _latest(instance: TickProblem) -> tuple[float, ...]:
    tail = list(instance.durations)
    waits: list[list[tuple[int, int]]] = [[] for _ in instance.blocks]
    for arc in instance.arcs:
        if not arc.distance:
            waits[arc.source].append((arc.target, arc.lag))
    for i in reversed(instance.problem.topological_order):
        tail[i] += max((lag + tail[j] for j, lag in waits[i]), default=0)
    return tuple(1 - rest / max(tail) for rest in tail)
