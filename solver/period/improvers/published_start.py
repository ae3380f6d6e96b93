"""The steady state of a published schedule, as a start."""

from __future__ import annotations

from typing import ClassVar, Self

from weft.solver.cpsat.budget import Slice
from weft.solver.period.bracket import Bracket
from weft.solver.period.improvers.starts import STARTS, published_steady_state
from weft.solver.period.technique import Improver, Task

__all__ = ["PublishedStart"]


class PublishedStart(Improver):
    """What the published schedule ``task.published`` repeats, if it repeats something that fits."""

    name: ClassVar[str] = "published-start"

    def __init__(self, schedule: str) -> None:
        self.schedule = schedule

    @classmethod
    def of(cls, bracket: Bracket, task: Task) -> Self | None:
        """None where no schedule is named, or a period has several micro-batches."""
        known = task.published in STARTS and bracket.best.micro_batches_per_period == 1
        return cls(task.published) if known and task.published is not None else None

    def improve(self, bracket: Bracket, time: Slice) -> None:
        """Takes as long as the schedule takes to make, whatever ``time`` is left."""
        found = published_steady_state(bracket.instance, self.schedule)
        if found is not None:
            bracket.offer(found, self.name)
