"""Known schedules as commands show them: on a placement, with whether they fit, and which of them are searches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.app.lib.case import Placement
from weft.solver.schedule import Schedule

__all__ = ["SEARCHES", "Known"]

#: Those that are searches under the same memory and durations themselves, not one fixed order, and what they are.
SEARCHES: Mapping[str, str] = {
    "zb-auto": "the automatic zero-bubble scheduler on these durations",
    "zb-v-auto": "the automatic scheduler of zero-bubble Vs on these durations",
    "v-block": "the building-block search on these durations", "greedy": "our own greedy heuristic"}


@dataclass(frozen=True)
class Known:
    """A known schedule with the placement that it is on."""

    placement: Placement
    schedule: Schedule
    fits: bool

    @property
    def labelled(self) -> Schedule:
        """The schedule with what it says of its placement."""
        return self.placement.label(self.schedule)

    @property
    def rank(self) -> tuple[bool, float]:
        """Smaller for what is better."""
        return not self.fits, self.schedule.value
