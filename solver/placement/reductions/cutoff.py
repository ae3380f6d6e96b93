"""What is exact among placements with no load above a cutoff: kinds that are too slow, tensors too dear to be cut."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from weft.solver.placement.groups import Groups, contract


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
