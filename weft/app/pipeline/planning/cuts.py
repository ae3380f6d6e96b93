"""Which cuts are looked at one after another, and what was found of each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from weft.app.pipeline.lib.split import fixed_places
from weft.app.pipeline.planning.machine import Machine
from weft.app.pipeline.planning.measuring import Ranks
from weft.app.pipeline.planning.memory.planned import Attempt, plans_memory
from weft.app.pipeline.planning.problems import StagesRun, least, loads
from weft.app.pipeline.planning.row import ALIKE, Row, proposals, rough_step
from weft.runtime.captured.captured import CaptureError
from weft.runtime.measure.stage_costs import StageCosts
from weft.solver.baselines import BASELINES

#: Cuts that are measured at most, and where they leave no schedule that fits.
CUTS, LOOKS = 3, 8


@dataclass(frozen=True)
class Tried:
    """A cut with what its stages cost, and the schedules that were run on it."""

    places: tuple[int, ...]
    costs: Sequence[StageCosts]
    runs: tuple[StagesRun, ...]

    @property
    def best(self) -> StagesRun:
        """The one whose step took least; published ones come first."""
        return least(self.runs)


class Cuts:
    """Which cut is looked at next, and what was found of those before; all but :attr:`row` is rank 0's."""

    def __init__(self, ranks: Ranks, machine: Machine, row: Row | None, counts: Sequence[int]) -> None:
        self.ranks, self.machine, self.row, self.counts = ranks, machine, row, counts
        self.options, self.name = ranks.options, type(ranks.captured.model).__name__
        self.begun = time.monotonic()
        self.looked: list[tuple[int, ...]] = []
        self.tried: list[Tried] = []
        self.skipped: list[str] = []  # which backends were not measured, and why
        self.reason: ValueError | None = None  # why the last cut left no schedule
        self.promising = True  # whether the last one's stages left one worth a run
        self.planning = plans_memory(ranks, machine, counts)
        self.attempts: list[Tried | None] = []
        if row is not None and ranks.decides and any(amount is not None for amount in machine.memory):
            self.row = ranks.kept(row)

    def following(self) -> tuple[int, ...] | None:
        """The cut to be looked at next; ``None`` if that is enough. Raises
        :class:`~weft.runtime.captured.captured.CaptureError` where there is none at all."""
        found = self._next()
        if found is not None:
            self.looked.append(found)
        elif not self.tried and not self.planning:
            raise CaptureError(f"no cut leaves a schedule that fits: {self.reason}") from self.reason
        return found

    def learn(self, tried: Tried) -> None:
        """What the stages of a cut took says more of the row than operators by themselves."""
        self.tried.append(tried)
        if self.row is not None:
            self.row = self.row.scaled(tried.places, loads(tried.best.fitted, len(tried.costs)))

    def attempted(self, costs: Sequence[StageCosts]) -> Attempt:
        """A cut with a memory plan was looked at, whose stages cost ``costs``; and whether a schedule of it ran."""
        self.attempts.append(self.tried.pop() if self.tried else None)
        return costs, self.attempts[-1] is not None

    def best_attempt(self) -> int:
        """Which of these took least, from here on the only one. Raises
        :class:`~weft.runtime.captured.captured.CaptureError` where none leaves a schedule that fits."""
        found = [(tried.best.measured, i) for i, tried in enumerate(self.attempts) if tried is not None]
        if not found:
            raise CaptureError(f"no cut leaves a schedule that fits, whatever operators are recomputed or offloaded: "
                               f"{self.reason}") from self.reason
        number = min(found)[1]
        self.tried = [tried for tried in [self.attempts[number]] if tried is not None]
        return number

    def _next(self) -> tuple[int, ...] | None:
        if self.row is None:
            return None if self.looked else self._fixed()
        if len(self.looked) >= (CUTS if self.tried else LOOKS) or not self.promising:
            return None
        if self.tried and time.monotonic() - self.begun > self.options.time_limit:
            return None
        row, name = self.row, self.options.schedule if self.options.schedule in BASELINES else None

        @cache
        def rough(places: tuple[int, ...]) -> float:
            return rough_step(row, places, self.machine, self.options.micro_batches, name)

        found = [places for count in self.counts for places in proposals(
            row, count, self.machine, self.options.micro_batches, rough)]
        if not found and not self.looked:
            raise CaptureError(f"{self.name} has {len(row.seconds)} operators, of which too few can be cut between for "
                               f"{min(self.counts)} stages: start fewer ranks")
        fresh = [places for places in found if places not in self.looked]
        if len(self.counts) > 1:
            fresh.sort(key=rough)
        if not fresh or (self.tried and rough(fresh[0]) > (1 - max(ALIKE, self.tried[-1].best.noise)) * min(
                rough(tried.places) for tried in self.tried)):
            return None
        return fresh[0]

    def _fixed(self) -> tuple[int, ...]:
        places, count = fixed_places(self.ranks.captured, self.options) or (), self.counts[0]
        if len(places) != count - 1:
            raise CaptureError(f"cuts has {len(places)} places, but {count} stages have {count - 1} between them")
        return places
