"""One climb for all refuters: which periods they try.

Feasibility is monotone in the period, so all refuted periods are below all achieved ones. A climb goes up from the
refuted end by growing steps; if a period stays open it approaches from below. How far and how close depends on the
refuter (:class:`~weft.solver.period.technique.Steps`): least distances are cheap and decide to a tick, the V shape
tests two periods at a time.
"""

from __future__ import annotations

from math import ceil, isqrt

from weft.solver.cpsat.budget import Slice
from weft.solver.period.bracket import Bracket
from weft.solver.period.params import PARAMETERS
from weft.solver.period.technique import Refuter


def refute(refuter: Refuter, bracket: Bracket, time: Slice) -> None:
    """Climb, and again with a sharper refuter, while there is one."""
    while refuter.ready(time) and not time.spent and _known(refuter, bracket) < ceil(bracket.best.period) - 1:
        climb(refuter, bracket, time)
        if not refuter.sharpen(time):
            return


def climb(refuter: Refuter, bracket: Bracket, time: Slice) -> None:
    """Refute periods between the bracket's two ends, as far as ``refuter`` can within ``time``."""
    low, high = _known(refuter, bracket), ceil(bracket.best.period)
    steps, count = refuter.steps(), bracket.counts.of(refuter.name)
    while not time.spent and (periods := steps.next(low, high)):
        count.calls += len(periods)
        refuted = refuter.refutes(periods, time)
        if refuted:
            low = max(refuted)
            bracket.refute(low, refuter.name)
        high = min([ceil(bracket.best.period), high, *(period for period in periods if period > low)])


def _known(refuter: Refuter, bracket: Bracket) -> int:
    """The longest period refuted before the refuter starts."""
    return int(bracket.refuted) if refuter.known is None else refuter.known


class Thirds:
    """Two periods at a time: steps grow until one stays open, then the rest is divided in three.

    Ends when no more than ``closest`` is left, a share of the period.
    """

    def __init__(self, closest: float, growth: int) -> None:
        self.closest, self.growth = closest, growth
        self._step = self._last = 0
        self._open = False

    def next(self, low: int, high: int) -> list[int]:
        """See :class:`~weft.solver.period.technique.Steps`."""
        if low + max(1, int(low * self.closest)) >= high:
            return []
        self._step = self._step * self.growth or max(1, int(low * PARAMETERS.rise))
        self._open = self._open or self._last > low
        if self._open:
            self._step = max(1, (high - low) // 3)
        periods = sorted({min(low + self._step, high - 1), min(low + 2 * self._step, high - 1)})
        self._last = periods[-1]
        return periods


class Bisection:
    """The geometric middle, until a tick is left: for refuters of negligible cost."""

    def next(self, low: int, high: int) -> list[int]:
        """See :class:`~weft.solver.period.technique.Steps`."""
        return [isqrt((low + 1) * high)] if low + 1 < high else []
