"""Lower bounds on the largest load that need no search, valid for the groups they are computed on.

Work per device: all groups at their fastest, spread over all devices without any transfer. Heaviest group: some stage
holds it.
"""

from __future__ import annotations

from solver.placement.groups import Groups
from solver.placement.windows import capacity_of

__all__ = ["simple_bound"]


def simple_bound(groups: Groups) -> float:
    """The larger of work per device and heaviest group."""
    stages = min(groups.problem.devices, groups.count)
    share = capacity_of(groups, stages).shares[-1]
    return max(float(groups.least.max()), float(groups.least.sum()) / share * (1 - 1e-12) if share else 0.0)
