"""Bounds where times are rounded to ticks: never above the optimum of the exact times, and not blurred by tiny ones.

Ticks are made so coarse that what rounding adds is large beside what it is added to.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import weft.solver.ticks
from tests.oracles.generated import Drawn, drawn
from tests.support.examples import examples
from tests.support.paths import REPROS
from tests.support.strategies import least_of, problems
from weft.solver.bounds import least_time, steady_bound
from weft.solver.bounds.load import exact_load, exact_load_bound
from weft.solver.cpsat.budget import Budget
from weft.solver.io.problem_files import load_problem
from weft.solver.latency.search import least_latency, slowest_useful_period
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.period.search import find_period
from weft.solver.problem import Problem
from weft.solver.relations.min_dist import takes_before_giving
from weft.solver.step.search import solve
from weft.solver.step.stretch import unroll
from weft.solver.ticks import TickProblem

COARSE = st.sampled_from([2, 5, 11, 30, 200])


def coarse(problem: Problem, ticks: int) -> TickProblem:
    """``problem`` with no more than about so many ticks in all its times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weft.solver.ticks, "_MOST_TICKS", ticks)
        return TickProblem.of(problem)


def drawn_with_optimum(number: int, most_operations: int) -> tuple[Drawn, Fraction]:
    """A drawn case and its least makespan, where it has one that the oracle can tell."""
    case = drawn(number, most_operations=most_operations)
    return case, least_of(case.problem, case.micro_batches, 20_000)


def test_a_single_device_s_load_is_exact() -> None:
    schedule = solve(load_problem(REPROS / "wide-ratio.json"), 3, effort=1)
    assert schedule.status == "optimal"
    assert schedule.makespan_bound == pytest.approx(3_000_000.000003, rel=1e-15)
    assert schedule.period_bound == pytest.approx(1_000_000.000001, rel=1e-15)
    assert unroll(schedule, 7).status == "optimal"


@settings(max_examples=examples(75))
@given(st.integers(0, 10**6), COARSE)
def test_a_rounded_makespan_bound_is_one_of_the_exact_times(number: int, ticks: int) -> None:
    case, best = drawn_with_optimum(number, most_operations=8)
    instance = coarse(case.problem, ticks)
    assert Fraction(least_time(instance, case.micro_batches)) <= best * (1 + Fraction(1, 10**12))
    assert exact_load_bound(case.problem, case.micro_batches) <= best


@pytest.mark.faults  # in ticks so coarse a steady state's period is not the one of its order that the judge derives
@settings(max_examples=examples(40))
@given(st.integers(0, 10**6), COARSE)
def test_a_rounded_search_is_bounded_by_the_exact_optimum(number: int, ticks: int) -> None:
    """The bound that CP-SAT proves of the rounded problem, with all orders searched."""
    case, best = drawn_with_optimum(number, most_operations=7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weft.solver.ticks, "_MOST_TICKS", ticks)
        schedule = solve(case.problem, case.micro_batches, effort=1)
    assert Fraction(schedule.makespan) >= best * (1 - Fraction(1, 10**9))
    assert Fraction(schedule.makespan_bound) <= best * (1 + Fraction(1, 10**9))


@settings(max_examples=examples(80))
@given(problems(max_devices=2, max_blocks=4, whole=True, balanced=True), COARSE)
def test_rounded_bounds_on_period_and_latency_are_bounds_on_the_exact_ones(problem: Problem, ticks: int) -> None:
    exact, rounded = TickProblem.of(problem), coarse(problem, ticks)
    assume(takes_before_giving(exact))
    best = find_period(exact, one_at_a_time(exact), Budget(deterministic=5.0))
    assume(best.proven)
    start = find_period(rounded, one_at_a_time(rounded), Budget(deterministic=5.0))
    period = best.best.period * exact.tick
    assert Fraction(rounded.bound(start.refuted, 1)) <= period * (1 + Fraction(1, 10**6))
    assert Fraction(rounded.bound(steady_bound(rounded), 1)) <= period * (1 + Fraction(1, 10**6))
    assert exact_load(problem) <= period

    limit = min(Fraction(slowest_useful_period(exact)), 2 * best.best.period) * exact.tick
    shortest = least_latency(exact, limit / exact.tick, best.best, Budget(deterministic=5.0))
    assume(shortest.proven and start.best.period <= limit / rounded.tick)
    found = least_latency(rounded, limit / rounded.tick, start.best, Budget(deterministic=5.0))
    claimed = rounded.latency_bound(found.bound, Fraction(rounded.heaviest_load) - rounded.loss)
    assert claimed <= shortest.best.latency * exact.tick * (1 + Fraction(1, 10**6))
