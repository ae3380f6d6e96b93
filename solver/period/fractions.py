"""Whether a period between two ticks exists."""

from __future__ import annotations

from weft.solver.cpsat.budget import Slice
from weft.solver.period.bracket import Bracket
from weft.solver.period.decide import REFUTED, decide
from weft.solver.period.params import PARAMETERS
from weft.solver.period.periodic import Periodic, coarser

__all__ = ["settle_fractions"]

_NAME = "fractions"


def settle_fractions(bracket: Bracket, time: Slice) -> None:
    """Decide whether a period between the last refuted tick and the best one exists.

    The least period T* is a ratio weight / height over a simple cycle of the order's constraint graph. A simple cycle
    leaves every block and transfer once at most, so its weight is at most W, the sum of all durations and lags, and its
    height at most H = W / bound. Fractions with denominators up to H that are below the best period a / b are at most
    a / b - 1 / (b H): refuting that period proves the best exactly, in ticks 1 / (b H) long.
    """
    instance = bracket.instance
    weight = sum(instance.durations) + sum(arc.lag for arc in instance.arcs)
    height = max(1, int(weight / bracket.refuted))
    while not time.spent and not bracket.proven:
        factor = bracket.best.period.denominator * height
        if len(instance.durations) * weight * factor > PARAMETERS.most_fine:
            return
        with bracket.counts.timed(_NAME) as count:
            count.calls += 1
            outcome = decide(instance.refined(factor), int(bracket.best.period * factor) - 1, time)
        if outcome is REFUTED:
            bracket.refute(bracket.best.period, _NAME)
        elif isinstance(outcome, Periodic):
            bracket.offer(coarser(outcome, instance, factor, bracket.best.micro_batches_per_period), _NAME)
        else:
            return
