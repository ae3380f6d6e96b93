"""The order in which candidate cuts are measured, and the results of each."""

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
from weft.app.pipeline.planning.row import TIE, Row, estimated_step, proposals
from weft.runtime.captured.captured import CaptureError
from weft.runtime.measure.stage_costs import StageCosts
from weft.solver.baselines import BASELINES

#: Most cuts that are measured; and most that are tried until a schedule fits the memory.
MOST, MOST_UNTIL_FIT = 3, 8


@dataclass(frozen=True)
class TriedCut:
    """A cut with the measured costs of its stages and the schedules that were run on them."""

    places: tuple[int, ...]
    costs: Sequence[StageCosts]
    runs: tuple[StagesRun, ...]

    @property
    def best(self) -> StagesRun:
        """The run with the shortest step; within noise, published schedules are preferred."""
        return least(self.runs)


class Cuts:
    """Selects the next cut to measure and collects the results. Only rank 0 has more than :attr:`row`."""

    def __init__(self, ranks: Ranks, machine: Machine, row: Row | None, counts: Sequence[int]) -> None:
        self.ranks, self.machine, self.row, self.counts = ranks, machine, row, counts
        self.options, self.name = ranks.options, type(ranks.captured.model).__name__
        self.begun = time.monotonic()
        self.candidates: list[tuple[int, ...]] = []
        self.tried: list[TriedCut] = []
        self.skipped: list[str] = []  # a sentence for each backend that is not used
        self.reason: ValueError | None = None  # why no schedule of the last cut fits
        self.promising = True  # whether a schedule of the last cut was good enough to run
        self.planning = plans_memory(ranks, machine, counts)
        self.attempts: list[TriedCut | None] = []
        if row is not None and ranks.decides and any(amount is not None for amount in machine.memory):
            self.row = ranks.kept(row)

    def next_cut(self) -> tuple[int, ...] | None:
        """The next cut to measure; ``None`` if no other is worthwhile. Raises
        :class:`~weft.runtime.captured.captured.CaptureError` if no cut leaves a schedule that fits."""
        found = self._next()
        if found is not None:
            self.candidates.append(found)
        elif not self.tried and not self.planning:
            raise CaptureError(f"no cut leaves a schedule that fits: {self.reason}") from self.reason
        return found

    def learn(self, tried: TriedCut) -> None:
        """Add a result, and scale the row to it: stages measured in a run are more accurate than single operators."""
        self.tried.append(tried)
        if self.row is not None:
            self.row = self.row.scaled(tried.places, loads(tried.best.fitted, len(tried.costs)))

    def attempted(self, costs: Sequence[StageCosts]) -> Attempt:
        """Close the attempt at a cut with a memory plan: its stage ``costs``, and whether a schedule of it ran."""
        self.attempts.append(self.tried.pop() if self.tried else None)
        return costs, self.attempts[-1] is not None

    def best_attempt(self) -> int:
        """The number of the attempt with the shortest step; the others are dropped. Raises
        :class:`~weft.runtime.captured.captured.CaptureError` if no attempt leaves a schedule that fits."""
        found = [(tried.best.measured, i) for i, tried in enumerate(self.attempts) if tried is not None]
        if not found:
            raise CaptureError(f"no cut leaves a schedule that fits, whatever operators are recomputed or offloaded: "
                               f"{self.reason}") from self.reason
        number = min(found)[1]
        self.tried = [tried for tried in [self.attempts[number]] if tried is not None]
        return number

    def _next(self) -> tuple[int, ...] | None:
        if self.row is None:
            return None if self.candidates else self._fixed()
        if len(self.candidates) >= (MOST if self.tried else MOST_UNTIL_FIT) or not self.promising:
            return None
        if self.tried and time.monotonic() - self.begun > self.options.time_limit:
            return None
        row, name = self.row, self.options.schedule if self.options.schedule in BASELINES else None

        @cache
        def estimate(places: tuple[int, ...]) -> float:
            return estimated_step(row, places, self.machine, self.options.micro_batches, name)

        found = [places for count in self.counts for places in proposals(
            row, count, self.machine, self.options.micro_batches, estimate)]
        if not found and not self.candidates:
            raise CaptureError(f"{self.name} has {len(row.seconds)} operators, of which too few can be cut between for "
                               f"{min(self.counts)} stages: start fewer ranks")
        fresh = [places for places in found if places not in self.candidates]
        if len(self.counts) > 1:
            fresh.sort(key=estimate)
        if not fresh or (self.tried and estimate(fresh[0]) > (1 - max(TIE, self.tried[-1].best.noise)) * min(
                estimate(tried.places) for tried in self.tried)):
            return None
        return fresh[0]

    def _fixed(self) -> tuple[int, ...]:
        places, count = fixed_places(self.ranks.captured, self.options) or (), self.counts[0]
        if len(places) != count - 1:
            raise CaptureError(f"cuts has {len(places)} places, but {count} stages have {count - 1} between them")
        return places
