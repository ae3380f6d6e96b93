"""Bounds on the least period: the longest refuted one and the shortest one achieved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction

from weft.solver.control.counts import Counts
from weft.solver.period.params import PARAMETERS
from weft.solver.period.periodic import Periodic, fits_pools
from weft.solver.ticks import TickProblem

#: A period is called proven when it is within this share of its bound.
PROOF_TOLERANCE = PARAMETERS.proof_tolerance


@dataclass
class Bracket:
    """The least period of ``instance``, one micro-batch a period (or as many as ``best`` has), from both sides.

    ``refuted``, in ticks: every shorter period is proven impossible. At first that is the load of the busiest device or
    link; later the longest period that a technique has refuted. ``best`` is the shortest steady state found. Techniques
    change them only by :meth:`refute` and :meth:`offer`; ``listener`` is called on every change, and ``refuted_by`` and
    ``best_by`` name the technique that made the last one. ``counts`` has the counts of every technique.
    """

    instance: TickProblem
    refuted: Fraction
    best: Periodic
    listener: Callable[[Bracket], None] = lambda _: None
    refuted_by: str = "load"
    best_by: str = "start"
    counts: Counts = field(default_factory=Counts)

    @property
    def proven(self) -> bool:
        """Whether no such period is shorter than that of ``best``, by more than :data:`PROOF_TOLERANCE`."""
        return self.best.period <= self.refuted * Fraction(1 + PROOF_TOLERANCE)

    def refute(self, period: int | Fraction, by: str) -> None:
        """Record that every period shorter than ``period`` ticks is impossible."""
        if period > self.refuted:
            self.refuted, self.refuted_by = Fraction(period), by
            self.counts.of(by).proofs += 1
            self.publish()

    def offer(self, found: Periodic, by: str) -> None:
        """Consider a steady state: it is kept if it is shorter than the best and fits mixed pools."""
        if found.period < self.best.period and fits_pools(found):
            self.best, self.best_by = replace(found, micro_batches_per_period=self.best.micro_batches_per_period), by
            self.counts.of(by).improvements += 1
            self.publish()

    def publish(self) -> None:
        """Call the listener."""
        self.listener(self)
