"""What is known of the least period: changes are published with who made them, and counted."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from tests.support.builders import chain, pipeline, v
from weft.solver.control.counts import Counts
from weft.solver.cpsat.budget import Budget
from weft.solver.period.bracket import Bracket
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.period.registry import OPTIONAL
from weft.solver.period.search import find_period
from weft.solver.ticks import TickProblem


def test_changes_are_published_and_counted_and_what_changes_nothing_is_not() -> None:
    instance = TickProblem.of(pipeline(chain(2)))
    start = one_at_a_time(instance)
    heard: list[tuple[float, float, str, str]] = []
    bracket = Bracket(instance, Fraction(3), start, lambda changed: heard.append(
        (float(changed.refuted), float(changed.best.period), changed.refuted_by, changed.best_by)))
    bracket.refute(3, "a")
    bracket.offer(start, "b")
    assert not heard
    bracket.refute(4, "a")
    bracket.offer(replace(start, period=Fraction(5)), "b")
    assert heard == [(4, 6, "a", "start"), (4, 5, "a", "b")]
    assert bracket.counts.to_json() == {"a": {"calls": 0, "proofs": 1, "improvements": 0, "seconds": 0.0},
                                        "b": {"calls": 0, "proofs": 0, "improvements": 1, "seconds": 0.0}}
    assert not bracket.proven and replace(bracket, refuted=Fraction(5)).proven


def test_counts_add_up() -> None:
    one, other = Counts(), Counts()
    one.of("a").calls, other.of("a").calls, other.of("b").proofs = 2, 3, 1
    one.add(other)
    assert (one.of("a").calls, one.of("b").proofs) == (5, 1)


@pytest.mark.parametrize("left_out", OPTIONAL)
def test_without_any_one_technique_the_period_is_found_and_the_technique_is_not_used(left_out: str) -> None:
    instance = TickProblem.of(pipeline(v(3), memory=4))
    whole = find_period(instance, one_at_a_time(instance), Budget(), deterministic=5.0)
    found = find_period(instance, one_at_a_time(instance), Budget(), deterministic=5.0, without={left_out})
    assert whole.proven and left_out not in found.counts.by_name
    assert found.refuted <= whole.best.period <= found.best.period
    if left_out != "whole-model-solve":
        assert found.best.period == whole.best.period


def test_an_unknown_name_is_refused() -> None:
    instance = TickProblem.of(pipeline(chain(2)))
    with pytest.raises(ValueError, match="no technique is called lanes; there are least-distances"):
        find_period(instance, one_at_a_time(instance), Budget(), without={"lanes"})
