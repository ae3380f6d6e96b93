"""Whole periods decided one after the other by the model of all blocks: schedules from above, refutations from below.

Periods near the optimum are the hardest to decide. Solves are cut short at first, which finds good schedules and
narrows the gap from both sides; open periods are tried again in the next pass, more closely and for longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, isqrt
from typing import ClassVar, Self

from weft.solver.cpsat.budget import Slice
from weft.solver.period.bracket import Bracket
from weft.solver.period.decide import OPEN, REFUTED, decide
from weft.solver.period.params import PARAMETERS
from weft.solver.period.periodic import Periodic
from weft.solver.period.technique import Improver, Task


class WholeModelSolve(Improver):
    """Every run is one pass over the open whole periods, closer than the pass before.

    ``first``, in ticks, comes first in the first pass: the least period that least distances leave open is often the
    optimum.
    """

    name: ClassVar[str] = "whole-model-solve"

    def __init__(self, task: Task, first: int) -> None:
        self.task, self.first = task, first
        self.spacing = PARAMETERS.first_spacing

    @classmethod
    def of(cls, bracket: Bracket, task: Task) -> Self | None:
        """Any problem has a model."""
        return cls(task, task.near)

    def improve(self, bracket: Bracket, time: Slice) -> None:
        """``first``, then the middle of the widest untried stretch.

        Periods that stay open are skipped, until they are no further apart than ``spacing`` of a period.
        """
        undecided: list[int] = []
        while not time.spent:
            low, high = int(bracket.refuted) + 1, ceil(bracket.best.period) - 1
            if low > high:
                break
            is_first = low <= self.first <= high and not undecided
            period = self.first if is_first else _widest(low, high, undecided, self.spacing * high)
            if period is None:
                break
            if not self._decided(bracket, period, time):
                undecided.append(period)
        self.first, self.spacing = 0, self.spacing / PARAMETERS.longer

    def _decided(self, bracket: Bracket, period: int, time: Slice) -> bool:
        """Whether ``period`` is decided now; the result is recorded in ``bracket``."""
        outcome = decide(bracket.instance, period, time, bracket.best, distances=self.task.distances)
        if isinstance(outcome, Periodic):
            bracket.offer(outcome, self.name)
        elif outcome is REFUTED:  # and with it every shorter period
            bracket.refute(period, self.name)
        return outcome is not OPEN


def _widest(low: int, high: int, undecided: Sequence[int], spacing: float) -> int | None:
    """A period from ``low`` to ``high`` to try next; ``None`` if all are near undecided ones."""
    known = [period for period in undecided if low <= period <= high]
    if not known:
        # Halve the gap while it is wide; once narrow, the best is probably optimal: refute the tick below it.
        return isqrt(low * high) if high - low > high // PARAMETERS.narrow_gap else high
    gap, left = max((right - left, left) for left, right in pairwise(sorted([low - 1, *known, high + 1])))
    return left + gap // 2 if gap > max(1.0, spacing) else None
