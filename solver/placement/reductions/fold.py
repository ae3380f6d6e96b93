"""Folding: groups joined to a neighbour where being together is never worse than being apart.

Chains of *identical layers* are not joined: where a row of equal layers is cut decides the load, so merging some of
them can lose the optimum (:mod:`weft.solver.placement.reductions.coarsen` does it and says so).
"""

from __future__ import annotations

import math

from weft.solver.placement.groups import Groups, contract, neighbours


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
    before, after = neighbours(groups.count, groups.order)
    free_memory = _memory_cannot_bind(groups)
    weightless = (groups.resident == 0) & (groups.per_micro_batch == 0)
    found: dict[int, int] = {}
    taken: set[int] = set()
    for group in range(groups.count):
        if group in taken or not (free_memory or weightless[group]):
            continue
        for hosts in (after[group], before[group]):
            if len(hosts) == 1 and hosts[0] not in found and _may_join(groups, group, hosts[0]):
                found[group] = hosts[0]
                taken.add(hosts[0])
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


