"""When the next phase is due, by the density that the gate shows: one rule with hysteresis."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

__all__ = ["DensityMonitor"]


class DensityMonitor:
    """The phase that is due, of those between ``borders``, which are densities and fall.

    The measured density is smoothed (each new one counts ``share``). A border is passed where the smoothed density is
    beyond it by more than ``margin`` of it, downwards or back: so noise within the margins switches nothing. Raises
    ``ValueError`` for borders that do not fall and settings that mean nothing.
    """

    def __init__(self, borders: Sequence[float], *, margin: float = 0.05, share: float = 0.1, phase: int = 0) -> None:
        if any(after >= before for before, after in pairwise(borders)) or any(border <= 0 for border in borders):
            raise ValueError(f"the borders between phases are {list(borders)}, they must fall and be greater than 0")
        if not 0 <= margin < 1 or not 0 < share <= 1:
            raise ValueError(f"margin is {margin:g} and share {share:g}: a margin is at least 0 and below 1, a share "
                             "more than 0 and at most 1")
        self.borders, self.margin, self.share = tuple(borders), margin, share
        self.phase = phase
        self.density: float | None = None

    def update(self, density: float) -> int:
        """Take in a measured ``density``; the phase that is due from now on."""
        self.density = density if self.density is None else self.density + self.share * (density - self.density)
        while self.phase < len(self.borders) and self.density < self.borders[self.phase] * (1 - self.margin):
            self.phase += 1
        while self.phase and self.density > self.borders[self.phase - 1] * (1 + self.margin):
            self.phase -= 1
        return self.phase
