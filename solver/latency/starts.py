"""Schedules that a search for the least latency begins with: made in milliseconds, at several periods.

Below the longest period allowed, a modulo list schedule (:mod:`weft.solver.period.improvers.list_schedule`) is often
close to the critical path, as devices have time to spare there; at the least period few orders are left. Of each order
the times are those of least latency (:mod:`weft.solver.latency.retime`).
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import floor

from weft.solver.control.clock import checkpoint
from weft.solver.latency.retime import FixedHeights
from weft.solver.period.improvers.list_schedule import list_periodic
from weft.solver.period.periodic import Periodic, fits_pools
from weft.solver.ticks import TickProblem

__all__ = ["least_latency_of", "listed_within"]

#: Periods from the longest down to the least, each so much shorter, and no more of them than that.
_SHORTER, _MOST = Fraction(8, 9), 12


def listed_within(instance: TickProblem, least: Fraction, limit: Fraction) -> Iterator[Periodic]:
    """List schedules with periods from ``limit`` down to ``least`` (ticks), each at its least latency."""
    period = limit
    for _ in range(_MOST):
        checkpoint()
        found = list_periodic(instance, floor(period), floor(period))
        if found is not None and found.period <= limit:
            yield least_latency_of(found, limit)
        period *= _SHORTER
        if period < least:
            return


def least_latency_of(found: Periodic, limit: Fraction) -> Periodic:
    """The order of ``found``, of one micro-batch a period, at the times and the period of at most ``limit`` ticks that
    have the least latency."""
    instance = found.instance
    heights = {(i, j): floor((found.starts[j] - found.starts[i] - instance.durations[i]) / found.period)
               for i, j in instance.shared_pairs()}
    best = FixedHeights(instance, heights).best(Fraction(instance.heaviest_load), limit)
    return found if best is None or best.latency >= found.latency or not fits_pools(best) else best
