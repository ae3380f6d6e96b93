"""Reductions that provably keep an optimum. Each makes the problem smaller or more ordered; none makes it worse.

The first one is :func:`weft.solver.placement.groups.groups_of` (colocation classes and cycles), which also makes
tensors that join the same groups one net. Here are those that need an argument; tests hold each against all placements
of small problems. Chains of *identical layers* are not among them: where a row of equal layers is cut decides the load,
so merging some of them can lose the optimum (:mod:`weft.solver.placement.reductions.coarsen` does it and says so).
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np

from weft.solver.placement.dag.depth_encoding import waits
from weft.solver.placement.groups import Groups, contract

__all__ = ["fold", "keep_dear_nets_whole", "order_branches", "order_twins", "without_slow_kinds"]


def fold(groups: Groups) -> Groups:
    """Groups joined to a neighbour where being together is never worse than being apart.

    Let b be the only group that directly follows a (or the only one that a directly follows), so that moving a into b's
    stage breaks no order. Let ``pair`` be the cost of nets {a, b} and ``out`` that of a's nets without b. Moving a from
    stage s to b's stage t changes loads so: t gains a's time and at most the nets without b, and no longer pays the
    pair: at most time + factor * (out - pair). s loses a's time and the pair and gains at most ``out``. Any other stage
    pays for a net of a if it holds part of the net, which it does as before. So if time + factor * (out - pair) <= 0 on
    every kind that b runs on, and out <= pair, no load grows. Where memory could matter, a must hold none.

    Zero-time leaves (weights, constants) and operators whose output costs more than all they do are folded this way.
    """
    while True:
        target = _targets(groups)
        if not target:
            return groups
        groups = contract(groups, [target.get(group, group) for group in range(groups.count)])


def _targets(groups: Groups) -> dict[int, int]:
    """Group -> the group it may join; no target joins another at the same time, as that would change what it costs."""
    after: list[list[int]] = [[] for _ in range(groups.count)]
    before: list[list[int]] = [[] for _ in range(groups.count)]
    for first, second in groups.order:
        after[first].append(second)
        before[second].append(first)
    free_memory = _memory_cannot_bind(groups)
    weightless = (groups.resident == 0) & (groups.per_micro_batch == 0)
    found: dict[int, int] = {}
    taken: set[int] = set()
    for group in range(groups.count):
        if group in taken or not (free_memory or weightless[group]):
            continue
        for neighbours in (after[group], before[group]):
            if len(neighbours) == 1 and neighbours[0] not in found and _may_join(groups, group, neighbours[0]):
                found[group] = neighbours[0]
                taken.add(neighbours[0])
                break
    return found


def _may_join(groups: Groups, group: int, host: int) -> bool:
    pair = out = 0.0
    for index in groups.nets_of[group]:
        net = groups.nets[index]
        if host not in net.groups:
            out += net.cost
        elif len(net.groups) == 2:
            pair += net.cost
    if out > pair:
        return False
    return all(not math.isfinite(groups.times[host, k])
               or groups.times[group, k] + kind.transfer_factor * (out - pair) <= 0
               for k, kind in enumerate(groups.problem.kinds) if kind.count)


def _memory_cannot_bind(groups: Groups) -> bool:
    problem = groups.problem
    most = groups.memory(range(groups.count), problem.in_flight(problem.devices))
    return all(kind.memory is None or most <= kind.memory for kind in problem.kinds if kind.count)


def without_slow_kinds(groups: Groups, cutoff: float) -> Groups:
    """Kinds on which a group alone takes longer than ``cutoff`` no longer support it.

    Exact among placements with no load above ``cutoff``: a load is at least the time of each group in it.
    """
    slow = groups.times > cutoff * (1 + 1e-9)
    if not (slow & np.isfinite(groups.times)).any():
        return groups
    return dataclasses.replace(groups, times=np.where(slow, float("inf"), groups.times))


def keep_dear_nets_whole(groups: Groups, cutoff: float) -> Groups:
    """The groups of a net made one where cutting it alone breaks ``cutoff``.

    Exact among placements with no load above ``cutoff``: a cut net is paid by at least two stages, on two devices. For
    a net of two groups each of the stages also holds one of them.
    """
    limit = cutoff * (1 + 1e-9)
    kinds = [(k, kind) for k, kind in enumerate(groups.problem.kinds) if kind.count]
    pairs = [(a, b) for a, b in itertools.product(kinds, kinds) if a[0] != b[0] or a[1].count > 1]
    label = list(range(groups.count))

    def root(group: int) -> int:
        while label[group] != group:
            label[group] = label[label[group]]
            group = label[group]
        return group

    for net in groups.nets:
        a, b = net.groups[0], net.groups[-1]
        own = len(net.groups) == 2

        def fits(group: int, k: int, factor: float, cost: float = net.cost, own: bool = own) -> bool:
            return factor * cost + (float(groups.times[group, k]) if own else 0.0) <= limit

        if not any(fits(a, here, kind.transfer_factor) and fits(b, there, other.transfer_factor)
                   for (here, kind), (there, other) in pairs):
            for group in net.groups[1:]:
                label[root(group)] = root(net.groups[0])
    joined = [root(group) for group in range(groups.count)]
    return groups if len(set(joined)) == groups.count else contract(groups, joined)


def order_twins(groups: Groups) -> Groups:
    """Interchangeable groups put into an order: the first of them is in the stage of the second or before it.

    Two groups are twins if they cost and hold the same, have the same groups directly before and after them, and
    exchanging their names leaves the nets as they are. Exchanging their places in a placement then changes no load, and
    no memory, so some best placement has them in any order we like.
    """
    after: list[list[int]] = [[] for _ in range(groups.count)]
    before: list[list[int]] = [[] for _ in range(groups.count)]
    for first, second in groups.order:
        after[first].append(second)
        before[second].append(first)
    alike: dict[object, list[list[int]]] = {}
    for group in range(groups.count):
        key = (tuple(groups.times[group].tolist()), groups.resident[group], groups.per_micro_batch[group],
               tuple(after[group]), tuple(before[group]))
        families = alike.setdefault(key, [])
        for family in families:
            if _exchangeable(groups, family[0], group):
                family.append(group)
                break
        else:
            families.append([group])
    further = [pair for families in alike.values() for family in families for pair in itertools.pairwise(family)]
    return contract(groups, range(groups.count), further) if further else groups


def _exchangeable(groups: Groups, a: int, b: int) -> bool:
    """Whether the nets stay as they are if ``a`` and ``b`` exchange their names."""
    if len(groups.nets_of[a]) != len(groups.nets_of[b]):
        return False
    cost = {groups.nets[index].groups: groups.nets[index].cost for index in (*groups.nets_of[a], *groups.nets_of[b])}
    other = {a: b, b: a}
    return all(cost.get(tuple(sorted(other.get(group, group) for group in net))) == amount
               for net, amount in cost.items())


def order_branches(groups: Groups) -> Groups:
    """Interchangeable branches put into an order: the first group of one is in the stage of the next one's or before.

    A branch is a path of groups that nothing comes before but what comes before all of it, each but the last with the
    next as its only successor. Branches that start after the same groups, end before the same groups and cost, hold and
    send the same, group by group, can exchange their places in a placement: no load, memory or depth changes. So some
    best placement has their first groups in any order we like.
    """
    after: list[list[int]] = [[] for _ in range(groups.count)]
    before: list[list[int]] = [[] for _ in range(groups.count)]
    for first, second in waits(groups):
        after[first].append(second)
        before[second].append(first)
    families: dict[object, list[list[int]]] = {}
    for group in range(groups.count):
        if len(before[group]) == 1 and len(after[before[group][0]]) == 1:
            continue  # inside a path
        path = [group]
        while len(after[path[-1]]) == 1 and len(before[after[path[-1]][0]]) == 1:
            path.append(after[path[-1]][0])
        if len(path) < 2:
            continue  # single groups are :func:`order_twins`'
        place = {member: -1 - i for i, member in enumerate(path)}
        nets = sorted((tuple(sorted(place.get(other, other) for other in groups.nets[i].groups)), groups.nets[i].cost)
                      for i in {i for member in path for i in groups.nets_of[member]})
        key = (tuple(before[group]), tuple(after[path[-1]]), tuple(nets),
               tuple((tuple(groups.times[m].tolist()), groups.resident[m], groups.per_micro_batch[m]) for m in path))
        families.setdefault(key, []).append(path)
    further = [(a[0], b[0]) for paths in families.values() for a, b in itertools.pairwise(paths)]
    return contract(groups, range(groups.count), further) if further else groups
