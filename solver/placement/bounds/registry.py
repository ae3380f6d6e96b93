"""The lower bounds on the largest load that need no search, valid for the groups they are computed on."""

from __future__ import annotations

from typing import ClassVar, Protocol

from weft.solver.placement.bounds.heaviest_group import HeaviestGroup
from weft.solver.placement.bounds.work_per_device import WorkPerDevice
from weft.solver.placement.groups import Groups

__all__ = ["BOUNDS", "LowerBound", "simple_bound"]


class LowerBound(Protocol):
    """A number that no placement's largest load is below."""

    name: ClassVar[str]

    @staticmethod
    def of(groups: Groups) -> float:
        """The bound, in the problem's unit of time; 0 where it says nothing."""
        ...


#: A further bound is one file beside these and one line here.
BOUNDS: tuple[type[LowerBound], ...] = (
    HeaviestGroup,
    WorkPerDevice,
)


def simple_bound(groups: Groups) -> float:
    """The largest of :data:`BOUNDS`."""
    return max(bound.of(groups) for bound in BOUNDS)
