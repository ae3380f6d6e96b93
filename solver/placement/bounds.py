"""How small can a largest load be at best? Bounds that need no search, valid for the groups they are computed on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weft.solver.placement.groups import Groups, least_times, least_work
from weft.solver.placement.stage_windows import capacity_of

__all__ = ["BOUNDS", "simple_bound"]

#: What the sum of many loads may lose by rounding, as a share of it.
_ROUNDING = 1e-12


def _heaviest_group(groups: Groups) -> float:
    """Some stage holds the group that takes longest, each on the kind that is best for it. Where stages may be
    replicated, each on the best number of devices too."""
    return float(least_times(groups).max())


def _work_per_device(groups: Groups) -> float:
    """All groups at their fastest over all devices, without any transfer. A group on r devices of a replicated stage
    takes r times its time there of all devices together. Where devices are of several kinds, a slow one holds less
    (:class:`~weft.solver.placement.stage_windows.Capacity`)."""
    if groups.problem.degrees:
        return float(least_work(groups).sum()) / groups.problem.devices * (1 - _ROUNDING)
    share = capacity_of(groups, min(groups.problem.devices, groups.count)).shares[-1]
    return float(groups.least.sum()) / share * (1 - _ROUNDING) if share else 0.0


#: Numbers that no placement's largest load is below, in the problem's unit of time.
BOUNDS: Mapping[str, Callable[[Groups], float]] = {
    "heaviest group": _heaviest_group, "work per device": _work_per_device}


def simple_bound(groups: Groups) -> float:
    """The largest of :data:`BOUNDS`."""
    return max(bound(groups) for bound in BOUNDS.values())
