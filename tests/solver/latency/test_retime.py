"""The best times and period once the height of every pair is fixed, on an example small enough for paper."""

from __future__ import annotations

from fractions import Fraction

from tests.support.builders import chain, pipeline
from weft.solver.latency.retime import FixedHeights
from weft.solver.ticks import TickProblem


def test_a_stage_alone_takes_its_work() -> None:
    """F, then B, one device: with height 0, B follows F of its own micro-batch, and the next F follows B."""
    instance = TickProblem.of(pipeline(chain(1), memory=1))
    (pair,) = instance.shared_pairs()
    found = FixedHeights(instance, {pair: 0}).best(Fraction(1), Fraction(100))
    assert found is not None
    assert found.period == found.latency == sum(instance.durations)


def test_a_period_that_the_heights_rule_out_has_no_schedule() -> None:
    instance = TickProblem.of(pipeline(chain(1), memory=1))
    (pair,) = instance.shared_pairs()
    assert FixedHeights(instance, {pair: 0}).best(Fraction(1), Fraction(sum(instance.durations) - 1)) is None


def test_waiting_a_period_longer_takes_as_much_latency() -> None:
    """With height 1 the next micro-batch's F lies between F and B: the period is the same, the latency longer."""
    instance = TickProblem.of(pipeline(chain(1), memory=2))
    (pair,) = instance.shared_pairs()
    soon, late = (FixedHeights(instance, {pair: height}).best(Fraction(1), Fraction(100)) for height in (0, 1))
    assert soon is not None and late is not None
    assert late.period == soon.period and late.latency > soon.latency
