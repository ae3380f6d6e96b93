"""Lower bounds on the largest load that need no search, valid for the groups they are computed on.

Work per device: all groups at their fastest, spread over all devices without any transfer. Heaviest group: some stage
holds it. Where stages may be replicated, a group on r devices takes r times its time there of all devices together, and
the heaviest is the one whose time on the best number of devices is longest.
"""

from __future__ import annotations

from weft.solver.placement.groups import Groups, Times
from weft.solver.placement.windows import capacity_of

__all__ = ["least_times", "least_work", "simple_bound"]


def simple_bound(groups: Groups) -> float:
    """The larger of work per device and heaviest group."""
    if groups.problem.degrees:
        return max(float(least_times(groups).max()),
                   float(least_work(groups).sum()) / groups.problem.devices * (1 - 1e-12))
    stages = min(groups.problem.devices, groups.count)
    share = capacity_of(groups, stages).shares[-1]
    return max(float(groups.least.max()), float(groups.least.sum()) / share * (1 - 1e-12) if share else 0.0)


def least_times(groups: Groups) -> Times:
    """Per group its least time in a stage, on the best kind and number of devices."""
    found = groups.least
    for devices, times in groups.degrees[1:]:
        if devices <= groups.problem.devices:
            found = found.clip(max=times.min(axis=1))
    return found


def least_work(groups: Groups) -> Times:
    """Per group the least time that it takes of all devices of its stage together."""
    found = groups.least
    for devices, times in groups.degrees[1:]:
        if devices <= groups.problem.devices:
            found = found.clip(max=devices * times.min(axis=1))
    return found
