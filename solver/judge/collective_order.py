"""Does every rank reach the shared collectives in one order?

A collective ends when all its ranks have reached it. If two ranks reach two collectives in different orders, each waits
for the other forever; the same happens round a cycle of ranks in which each two share only one collective. Jobs that
share GPUs bring collectives of their own, each in its own valid order: together they must have one. The check sees only
the stated order on each rank, such as the lists of a plan or a measurement.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import combinations, pairwise


def collective_order_faults(rows: Mapping[int, Sequence[Hashable]]) -> list[str]:
    """The faults in the order of collectives, a sentence each; none if one order fits all ranks.

    ``rows``: the items of each rank, in the order in which it begins them, under names that are the same on all ranks.
    An item of a single rank is ignored.
    """
    found = [f"rank {rank} comes to {item} twice" for rank, row in rows.items() for item in _twice(row)]
    known = {rank: set(row) for rank, row in rows.items()}
    for one, other in combinations(rows, 2):
        first = [item for item in rows[one] if item in known[other]]
        second = [item for item in rows[other] if item in known[one]]
        found += [f"rank {one} comes to {a} where rank {other} comes to {b}"
                  for a, b in zip(first, second, strict=False) if a != b][:1]
    return found or _circle(rows)


def _circle(rows: Mapping[int, Sequence[Hashable]]) -> list[str]:
    """The cycle, if each two ranks agree but all together do not."""
    import networkx as nx

    ranks: dict[Hashable, int] = {}
    for row in rows.values():
        for item in row:
            ranks[item] = ranks.get(item, 0) + 1
    graph: nx.DiGraph[Hashable] = nx.DiGraph()
    for row in rows.values():
        graph.add_edges_from(pairwise([item for item in row if ranks[item] > 1]))
    if nx.is_directed_acyclic_graph(graph):
        return []
    circle = [edge[0] for edge in nx.find_cycle(graph)]
    return ["the ranks wait for each other in a circle: " + " before ".join(map(str, [*circle, circle[0]]))]


def _twice(row: Sequence[Hashable]) -> list[Hashable]:
    seen: set[Hashable] = set()
    return [item for item in row if item in seen or seen.add(item)]  # type: ignore[func-returns-value]
