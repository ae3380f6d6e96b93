"""The search against brute force on tiny problems, and its promises on larger ones."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from tests.oracles.brute import least_whole_period
from tests.oracles.whole import least_makespan
from tests.support.builders import published, valid
from tests.support.examples import for_all
from tests.support.strategies import Case, cases, pipelines, problems
from weft.solver import Budget, Infeasible, Problem, solve, unroll
from weft.solver.bounds import steady_bound
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.period.search import find_period
from weft.solver.relations.min_dist import least_open_period, takes_before_giving
from weft.solver.ticks import TickProblem


@for_all(cases(max_devices=3, max_blocks=4, max_micro_batches=2), tries=75)
def test_a_tiny_problem_is_solved_to_the_optimum_and_proven(case: Case) -> None:
    assume(len(case.problem.blocks) * case.micro_batches <= 8)
    best = least_makespan(case.problem, case.micro_batches)
    assert best is not None
    schedule = solve(case.problem, case.micro_batches, time_limit=3000, effort=20)
    assert schedule.makespan == pytest.approx(float(best), rel=1e-9)
    assert schedule.status == "optimal"


@for_all(cases(max_devices=2, max_blocks=4, whole=True, balanced=True, links=False), st.sampled_from([1, 2]),
         tries=80)
def test_the_period_of_a_tiny_problem_is_the_shortest(case: Case, workers: int) -> None:
    instance = TickProblem.of(case.problem)
    start = one_at_a_time(instance)
    assume(start.period * instance.tick <= 9 and takes_before_giving(instance))
    search = find_period(instance, start, Budget(deterministic=20.0, workers=workers))
    best = least_whole_period(case.problem, math.ceil(start.period * instance.tick))
    assert search.proven
    assert math.ceil(search.best.period * instance.tick) == best
    assert search.refuted <= search.best.period
    assert least_open_period(instance, math.ceil(start.period)) <= math.ceil(search.best.period)
    assert steady_bound(instance) <= search.best.period


@for_all(cases(max_blocks=6, max_micro_batches=6), tries=60)
def test_every_solution_is_valid_bounded_and_no_worse_than_a_baseline(case: Case) -> None:
    schedule = valid(solve(case.problem, case.micro_batches, time_limit=3000, effort=0.3))
    assert schedule.makespan_bound <= schedule.makespan
    for rival in published(case.problem, case.micro_batches).values():
        if all(device.memory is None or Fraction(str(peak)) <= Fraction(str(device.memory))
               for device, peak in zip(case.problem.devices, rival.peak_memory, strict=True)):
            assert schedule.makespan <= rival.makespan * (1 + 1e-9)


@for_all(pipelines(max_devices=3), tries=25)
def test_a_schedule_with_a_repetend_unrolls_to_any_number_of_micro_batches(problem: Problem) -> None:
    schedule = solve(problem, 12, time_limit=3000, effort=0.1)
    assume(schedule.repetend is not None and schedule.repetend.count > 1)
    assert schedule.repetend is not None
    step = schedule.repetend.micro_batches
    for periods in (-1, 1, 10):
        other = unroll(schedule, 12 + periods * step)
        assert other.micro_batches == 12 + periods * step
        assert other.makespan_bound <= other.makespan * (1 + 1e-9)
    assert unroll(unroll(schedule, 12 + 10 * step), 12).operations == schedule.operations


@for_all(problems(max_devices=3, max_blocks=5, capacities=True), tries=60)
def test_infeasible_is_said_only_where_brute_force_agrees(problem: Problem) -> None:
    assume(len(problem.blocks) <= 5)
    best = least_makespan(problem, 1)
    try:
        schedule = solve(problem, 1, time_limit=3000, effort=5)
    except Infeasible:
        assert best is None
    else:
        assert best is not None
        assert schedule.makespan == pytest.approx(float(best), rel=1e-9)
