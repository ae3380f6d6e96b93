"""Coarsening: a graph of thousands of groups made one of hundreds. A heuristic: it may lose every optimum.

Groups along heavy edges are joined, as long as none grows beyond a small part of what a stage holds: an edge a -> b is
joined only if b is all that directly follows a, or a all that b directly follows, so that no cycle can arise. What is
placed on the coarse graph is a placement of the fine one; bounds for the coarse one say nothing about it.

:func:`shorten_paths` is for :mod:`weft.solver.placement.dag.levels.level_search`, whose cost grows with the lengths of
a graph's
paths: interchangeable paths stay so.
"""

from __future__ import annotations

import math

from weft.solver.cpsat.solve import Budget
from weft.solver.placement.dag.levels.ideals import Ideals
from weft.solver.placement.groups import Groups, contract

__all__ = ["coarsen", "shorten_paths"]


def coarsen(groups: Groups, target: int, stages: int, parts: int = 20) -> Groups:
    """About ``target`` groups, or as few as can be had with none above 1/``parts`` of a stage's share of the work (or
    of the memory)."""
    while groups.count > target:
        joined = _match(groups, target, stages, parts)
        if joined is None:
            return groups
        groups = contract(groups, joined)
    return groups


def shorten_paths(groups: Groups, pieces: int) -> Groups:
    """Every path (:mod:`weft.solver.placement.dag.levels.ideals`) made of at most ``pieces`` groups of about equal
    work, those next to each other joined."""
    label = list(range(groups.count))
    paths = Ideals(groups, Budget(), limit=math.inf, devices=groups.problem.devices, in_a_row=True, twins=False).paths
    for path in paths:
        total, passed = sum(float(groups.least[g]) for g in path), 0.0
        first: dict[int, int] = {}
        for group in path:
            middle = passed + float(groups.least[group]) / 2
            label[group] = first.setdefault(min(pieces - 1, int(pieces * middle / total)) if total else 0, group)
            passed += float(groups.least[group])
    return contract(groups, label)


def _match(groups: Groups, target: int, stages: int, parts: int) -> list[int] | None:
    after: list[list[int]] = [[] for _ in range(groups.count)]
    before: list[list[int]] = [[] for _ in range(groups.count)]
    for first, second in groups.order:
        after[first].append(second)
        before[second].append(first)
    tie: dict[tuple[int, int], float] = {}
    for net in groups.nets:
        if len(net.groups) <= 16:  # what joins many groups ties no two of them
            share = net.cost / (len(net.groups) - 1)
            for i, a in enumerate(net.groups):
                for b in net.groups[i + 1:]:
                    tie[a, b] = tie.get((a, b), 0.0) + share
    weights = [groups.least, groups.resident, groups.per_micro_batch]
    caps = [float(weight.sum()) / (stages * parts) for weight in weights]

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
