"""Local search over rings: what is found is shorter and fits, in the time that it is given, the same every time."""

from __future__ import annotations

import random
from fractions import Fraction
from math import inf

import pytest

from tests.support import chain, judged, laned_pipeline, loop, pipeline, uneven, v
from weft.solver.cpsat.budget import Budget, Slice
from weft.solver.period import Bracket, Periodic
from weft.solver.period.improvers.ring_search import RingSearch
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.period.reductions.multi_batch import in_copies, repeat_copies
from weft.solver.period.technique import Task
from weft.solver.problem import Problem
from weft.solver.ticks import TickProblem


def improved(start: Periodic, budget: Budget | None = None) -> Bracket:
    """The bracket after one run from ``start``."""
    instance = start.instance
    bracket = Bracket(instance, Fraction(instance.heaviest_load), start)
    technique = RingSearch.of(bracket, Task(instance.heaviest_load))
    assert technique is not None
    technique.improve(bracket, Slice(budget or Budget(), inf))
    return bracket


@pytest.mark.parametrize(("problem", "period"), [
    (pipeline(chain(4), forward=1, backward=2, memory=4), 3), (pipeline(chain(8), forward=1, backward=2, memory=2), 12),
    (pipeline(v(4), forward=1, split=(1, 1), memory=8), 6), (pipeline(loop(4), forward=1, backward=2, memory=8), 6)])
def test_one_at_a_time_is_left_behind(problem: Problem, period: int) -> None:
    bracket = improved(one_at_a_time(TickProblem.of(problem)))
    assert bracket.best.period == period and bracket.best_by == "ring-search"
    judged(bracket.best)


def test_a_period_of_several_micro_batches_is_shortened() -> None:
    """Six units of work for three micro-batches of four that a device holds at once: fractions of whole periods."""
    instance = TickProblem.of(uneven(pipeline(v(3), memory=5), random.Random(1)))
    alone = one_at_a_time(instance)
    start = repeat_copies(alone, in_copies(instance, 2), 2)
    found = improved(start).best
    assert found.micro_batches_per_period == 2 and found.rate < alone.rate
    assert found.rate <= improved(alone).best.rate


def test_a_budget_is_kept_and_an_answer_repeats() -> None:
    instance = TickProblem.of(uneven(pipeline(v(6), memory=7), random.Random(0)))
    budgets = [Budget(deterministic=0.02, seed=3) for _ in range(2)]
    first, again = (improved(one_at_a_time(instance), budget).best for budget in budgets)
    assert first == again and all(0.01 <= budget.deterministic_used < 0.03 for budget in budgets)


def test_memory_that_hangs_on_times_is_left_to_others() -> None:
    instance = TickProblem.of(laned_pipeline(2, 2, copy=5))
    assert instance.mixed_pools
    bracket = Bracket(instance, Fraction(1), one_at_a_time(instance))
    assert RingSearch.of(bracket, Task(1)) is None
