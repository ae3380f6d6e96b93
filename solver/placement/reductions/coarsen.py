"""Coarsening: a graph of thousands of groups made one of hundreds. A heuristic: it may lose every optimum.

Groups along heavy edges are joined, as long as none grows beyond a small part of what a stage holds: an edge a -> b is
joined only if b is all that directly follows a, or a all that b directly follows, so that no cycle can arise. What is
placed on the coarse graph is a placement of the fine one; bounds for the coarse one say nothing about it.
"""

from __future__ import annotations

from weft.solver.placement.groups import Groups, contract, neighbours
from weft.solver.placement.params import PARAMS, PlacementParams


def coarsen(groups: Groups, target: int, stages: int, params: PlacementParams = PARAMS) -> Groups:
    """About ``target`` groups, or as few as can be had with none above one part in ``params.coarse_parts`` of a stage's
    share of the work (or of the memory)."""
    while groups.count > target:
        joined = _match(groups, target, stages, params)
        if joined is None:
            return groups
        groups = contract(groups, joined)
    return groups


def _match(groups: Groups, target: int, stages: int, params: PlacementParams) -> list[int] | None:
    before, after = neighbours(groups.count, groups.order)
    tie: dict[tuple[int, int], float] = {}
    for net in groups.nets:
        if len(net.groups) <= params.tying_groups:  # what joins many groups ties no two of them
            share = net.cost / (len(net.groups) - 1)
            for i, a in enumerate(net.groups):
                for b in net.groups[i + 1:]:
                    tie[a, b] = tie.get((a, b), 0.0) + share
    weights = [groups.least, groups.resident, groups.per_micro_batch]
    caps = [float(weight.sum()) / (stages * params.coarse_parts) for weight in weights]

    def small(a: int, b: int) -> bool:
        # What already is too heavy may still take in something that weighs nothing.
        return all(weight[a] + weight[b] <= max(cap, weight[a], weight[b])
                   for weight, cap in zip(weights, caps, strict=True))

    edges = [(a, b) for a, b in groups.order if len(after[a]) == 1 or len(before[b]) == 1]
    edges.sort(key=lambda edge: (-tie.get(edge, 0.0), groups.least[edge[0]] + groups.least[edge[1]], edge))
    label = list(range(groups.count))
    taken: set[int] = set()
    left = groups.count
    for a, b in edges:
        if left > target and a not in taken and b not in taken and small(a, b):
            label[b] = a
            taken.update((a, b))
            left -= 1
    return None if left == groups.count else label
