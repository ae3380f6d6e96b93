"""Periods of a fold refuted in finer and finer cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import ceil

from weft.solver.cpsat.solve import Budget
from weft.solver.period.decide import Allowance
from weft.solver.period.refuters.v_shape_dp import FoldPatterns
from weft.solver.period.structure.v_shape import Fold
from weft.solver.ticks import TickProblem

__all__ = ["FoldBound"]

#: Cells of a period at first, and at most; how long they are the next time, as a share.
_FIRST_CELLS, _MOST_CELLS, _SHORTER = 32, 240, 0.7
#: How far apart the first periods that are tried lie, and those that are still told apart, as a share of the period.
_RISE, _CLOSEST = 1 / 512, 1 / 4096
#: How many times longer than a model a period may take: what is not refuted this time is by finer cells.
_PATIENCE = 8
#: Patterns that count as a second of deterministic time; and of one device that do not take too much memory (a byte or
#: two each, and as much again for each of two periods at a time).
_SECOND, _MOST_STATES = 250e6, 2**28


class FoldBound:
    """Refutes periods of ``fold``; what :meth:`refine` has tried once it tries in finer cells the next time.

    ``helped`` says whether any has been refuted.
    """

    def __init__(self, fold: Fold, period: int) -> None:
        self.fold = fold
        self.helped = False
        self._period = period
        self._length = -(-period // _FIRST_CELLS)  # of a cell, in ticks: whole ones blur least
        self._states = self._most_states = 0.0  # of a period in these cells, and of one device: a guess

    @classmethod
    def of(cls, instance: TickProblem, period: int) -> FoldBound | None:
        """None if the blocks are no fold. ``period`` is about what is looked for, in ticks."""
        fold = Fold.of(instance)
        return None if fold is None else cls(fold, period)

    @property
    def exhausted(self) -> bool:
        """Whether there are no finer cells, or too many states of them."""
        return (self._length < 1 or self._period > _MOST_CELLS * self._length
                or self._most_states > _MOST_STATES)

    @property
    def _cost(self) -> float:
        return self._states / _SECOND

    def refine(self, low: int, high: int, allowed: Allowance, on_refuted: Callable[[int], None]) -> None:
        """Refute periods between ``low`` and ``high``, in ticks, in cells as fine as ``allowed`` for each.

        ``on_refuted`` hears of each that is. All up to ``low`` are refuted.
        """
        while not self.exhausted and self._cost <= _PATIENCE * allowed.left and not allowed.spent and low < high - 1:
            known, low = low, self._climb(low, high, allowed, on_refuted)
            dear = self._cost > allowed.left
            shorter = min(self._length - 1, ceil(self._length * _SHORTER))
            more = (self._length / max(1, shorter)) ** 3
            self._length, self._states, self._most_states = shorter, more * self._states, more * self._most_states
            if dear and low == known:
                return

    def _climb(self, low: int, high: int, allowed: Allowance, on_refuted: Callable[[int], None]) -> int:
        """The greatest period that these cells refute: by growing steps, then by dividing what is left in three."""
        step, open_known = max(1, int(low * _RISE)), False
        while low + max(1, int(low * _CLOSEST)) < high and not allowed.spent:
            if open_known:
                step = max(1, (high - low) // 3)
            periods = sorted({min(low + step, high - 1), min(low + 2 * step, high - 1)})
            refuted = self._refuted(periods, allowed.budget)
            if refuted:
                low, self.helped = max(refuted), True
                on_refuted(low)
            if still_open := [period for period in periods if period > low]:
                high, open_known = min(still_open), True
            step *= 4
        return low

    def _refuted(self, periods: Sequence[int], budget: Budget) -> list[int]:
        """Those of ``periods`` that these cells refute."""
        patterns = [FoldPatterns(self.fold, period, -(-period // self._length)) for period in periods]
        with ThreadPoolExecutor(budget.workers) as threads:
            try:
                refuted = list(threads.map(lambda one: one.refuted(budget), patterns))
            except KeyboardInterrupt:
                budget.interrupted = True
                return []
        self._states = max(one.states for one in patterns)
        self._most_states = max(one.most_states for one in patterns)
        budget.deterministic_used += sum(one.states for one in patterns) / _SECOND
        return [period for period, impossible in zip(periods, refuted, strict=True) if impossible]
