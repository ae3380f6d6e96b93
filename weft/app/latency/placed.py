"""What is known of one placement while latencies are searched: schedules, and proven bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from weft.app.lib.case import Placement
from weft.solver.latency.search import longest_chain, slowest_useful_period
from weft.solver.period.periodic import Periodic
from weft.solver.ticks import TickProblem

__all__ = ["PlacedRates"]


@dataclass
class PlacedRates:
    """What is known of one placement. Times are in ticks of its instance.

    ``bounds`` are ``(period, latency)``: at most so long a period, at least so long a latency.
    """

    placement: Placement
    instance: TickProblem
    known: list[Periodic]
    least_period: Fraction
    bounds: list[tuple[Fraction, Fraction]] = field(default_factory=list)

    @property
    def fastest(self) -> Periodic:
        """The known schedule of the shortest period."""
        return min(self.known, key=lambda found: (found.period, found.latency))

    def limit(self, period: Fraction) -> Fraction:
        """A period in the problem's unit as ticks."""
        return period / self.instance.tick

    def best_within(self, period: Fraction) -> Periodic | None:
        """The known schedule of least latency with a period of at most ``period`` (the problem's unit)."""
        fast = [found for found in self.known if found.period <= self.limit(period)]
        return min(fast, key=lambda found: (found.latency, found.period), default=None)

    def bound_within(self, period: Fraction) -> Fraction | None:
        """A proven bound on the latency at a period of at most ``period``, both in the problem's unit; None where no
        schedule is so fast."""
        instance, limit = self.instance, self.limit(period)
        if self.least_period > instance.loosened(limit):
            return None
        path = longest_chain(instance, instance.loosened(min(limit, Fraction(slowest_useful_period(instance)))))
        if path is None:
            return None
        best = max([Fraction(path), *(bound for at, bound in self.bounds if at >= limit)])
        return instance.latency_bound(best, Fraction(instance.heaviest_load) - instance.loss)
