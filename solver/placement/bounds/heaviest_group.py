"""Some stage holds the heaviest group."""

from __future__ import annotations

from typing import ClassVar

from weft.solver.placement.groups import Groups, least_times

__all__ = ["HeaviestGroup"]


class HeaviestGroup:
    """The time of the group that takes longest, each on the kind that is best for it. Where stages may be replicated,
    each on the best number of devices too."""

    name: ClassVar[str] = "heaviest group"

    @staticmethod
    def of(groups: Groups) -> float:
        """In the problem's unit of time."""
        return float(least_times(groups).max())
