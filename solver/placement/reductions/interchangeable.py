"""Interchangeable groups and branches put into an order: of placements that differ by names alone one is left."""

from __future__ import annotations

import itertools

from weft.solver.placement.groups import Groups, contract, neighbours
from weft.solver.placement.paths import Paths


def order_twins(groups: Groups) -> Groups:
    """Interchangeable groups put into an order: the first of them is in the stage of the second or before it.

    Two groups are twins if they cost and hold the same, have the same groups directly before and after them, and
    exchanging their names leaves the nets as they are. Exchanging their places in a placement then changes no load, and
    no memory, so some best placement has them in any order we like.
    """
    before, after = neighbours(groups.count, groups.order)
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

    Branches are interchangeable paths (:mod:`weft.solver.placement.paths`) of several groups: they can exchange their
    places in a placement, and no load, memory or depth changes. So some best placement has their first groups in any
    order we like.
    """
    form = Paths.of(groups)
    further = [(form.paths[a][0], form.paths[b][0]) for family in form.families for a, b in itertools.pairwise(family)
               if len(form.paths[a]) > 1]  # single groups are :func:`order_twins`'
    return contract(groups, range(groups.count), further) if further else groups
