"""All work, spread over all devices without any transfer."""

from __future__ import annotations

from typing import ClassVar

from weft.solver.placement.groups import Groups, least_work
from weft.solver.placement.stage_windows import capacity_of

__all__ = ["WorkPerDevice"]

#: What the sum of many loads may lose by rounding, as a share of it.
_ROUNDING = 1e-12


class WorkPerDevice:
    """All groups at their fastest over all devices. A group on r devices of a replicated stage takes r times its time
    there of all devices together. Where devices are of several kinds, a slow one holds less
    (:class:`~weft.solver.placement.stage_windows.Capacity`)."""

    name: ClassVar[str] = "work per device"

    @staticmethod
    def of(groups: Groups) -> float:
        """In the problem's unit of time."""
        if groups.problem.degrees:
            return float(least_work(groups).sum()) / groups.problem.devices * (1 - _ROUNDING)
        share = capacity_of(groups, min(groups.problem.devices, groups.count)).shares[-1]
        return float(groups.least.sum()) / share * (1 - _ROUNDING) if share else 0.0
