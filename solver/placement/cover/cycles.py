"""Parts that wait for each other: found, so that they can be forbidden or taken apart."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from weft.solver.late import nx

__all__ = ["a_cycle", "cycles", "order_of"]


def cycles(after: Sequence[Sequence[int]], part_of: Sequence[int], count: int) -> list[list[int]]:
    """Cycles among ``count`` parts, the shortest through the first part of each knot of them; none if there is an order
    of the parts. ``after``: of each operator those that read it; ``part_of``: the part that it is in."""
    graph = _graph(after, part_of, count)
    return [_shortest(graph, min(knot), knot) for knot in nx.strongly_connected_components(graph) if len(knot) > 1]


def a_cycle(after: Sequence[Sequence[int]], part_of: Sequence[int], count: int) -> list[int]:
    """One of them, or nothing."""
    return next(iter(cycles(after, part_of, count)), [])


def order_of(after: Sequence[Sequence[int]], part_of: Sequence[int], count: int) -> list[int]:
    """The parts in an order in which they can run: of those that can, the one with the first operator is next."""
    first = [len(part_of)] * count
    for i in reversed(range(len(part_of))):
        first[part_of[i]] = i
    return list(nx.lexicographical_topological_sort(_graph(after, part_of, count), key=first.__getitem__))


def _graph(after: Sequence[Sequence[int]], part_of: Sequence[int], count: int) -> nx.DiGraph[int]:
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from((part_of[i], part_of[j]) for i, readers in enumerate(after) for j in readers
                         if part_of[i] != part_of[j])
    return graph


def _shortest(graph: nx.DiGraph[int], start: int, knot: set[int]) -> list[int]:
    """The shortest cycle through ``start`` within ``knot``."""
    came: dict[int, int] = {}
    waiting = deque([start])
    while waiting:
        part = waiting.popleft()
        for other in sorted(graph.successors(part)):
            if other == start:
                found = [part]
                while found[-1] != start:
                    found.append(came[found[-1]])
                return found[::-1]
            if other in knot and other not in came:
                came[other] = part
                waiting.append(other)
    raise AssertionError("a knot has a cycle through each of its parts")
