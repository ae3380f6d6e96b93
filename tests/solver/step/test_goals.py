"""Objectives of a step: the span against every order of tiny problems, known values, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.oracles.generated import drawn
from tests.oracles.lanes import drawn_with_lanes
from tests.oracles.spans import least_span, least_span_with_lanes
from tests.support import chain, pipeline, slow, v, valid
from weft.solver import BASELINES, Block, BlockKind, Budget, Dependency, Device, Problem, baseline, unroll
from weft.solver.io.schedule_files import schedule_to_json
from weft.solver.judge.claims import judge_claims
from weft.solver.step.search import Infeasible, NoneFound, Search, solve
from weft.solver.ticks import TickProblem


def agrees(problem: Problem, micro_batches: int, oracle: Callable[..., float | None]) -> bool:
    """Whether trying every order tells the least span: then the search finds and proves it."""
    try:
        least = oracle(problem, micro_batches, most_orders=300)
    except OverflowError:
        return False
    if least is None:
        with pytest.raises(Infeasible):
            solve(problem, micro_batches, objective="span", effort=2.0)
        return False
    found = valid(solve(problem, micro_batches, objective="span", effort=2.0))
    assert (found.value, found.value_bound) == pytest.approx((least, least), rel=1e-6), problem.name
    return True


@pytest.mark.slow
@pytest.mark.parametrize("first", (0, 14))
def test_the_least_span_of_tiny_problems_is_found_and_proven(first: int) -> None:
    """Fractions of a tick included, and times of fifteen digits."""
    cases = [drawn(number, most_operations=8) for number in range(first, first + 14)]
    assert sum(agrees(case.problem, case.micro_batches, least_span) for case in cases) > 5


@pytest.mark.parametrize("first", [0, *map(slow, range(30, 120, 30))])
def test_the_least_span_where_lanes_share_a_memory_is_found_and_proven(first: int) -> None:
    problems = [drawn_with_lanes(number, most_blocks=4) for number in range(first, first + 30)]
    assert sum(agrees(problem, 2 if len(problem.blocks) == 2 else 1, least_span_with_lanes)
               and bool(TickProblem.of(problem).mixed_pools) for problem in problems) > 3


def test_two_devices_that_wait_for_each_other_need_a_fraction_of_a_tick() -> None:
    """Each device alone could do with 4 and 5; both together take 5.5, and less is proven impossible."""
    problem = Problem("crossed", (Device("x"), Device("y")), (
        Block("a", BlockKind.OTHER, (0,), 1, (0,)),
        Block("b", BlockKind.OTHER, (1,), 1, (0,)),
        Block("c", BlockKind.OTHER, (1,), 1, (0,), (), (Dependency("a", 4), Dependency("b"))),
        Block("d", BlockKind.OTHER, (0,), 1, (0,), (), (Dependency("b", 3), Dependency("a")))))
    found = solve(problem, 1, objective="span", effort=1.0)
    assert (found.value, found.value_bound) == (5.5, 5.5)
    assert solve(problem, 1, effort=1.0).makespan == 6


@pytest.mark.slow
def test_no_published_schedule_has_a_smaller_span() -> None:
    problem = pipeline(v(3), forward=1, split=(1.25, 0.5), memory=5)
    found = solve(problem, 6, objective="span", effort=3.0)
    for name in BASELINES:
        search = Search(problem, 6, Budget(), objective="span")
        try:
            search.incumbent.offer(BASELINES[name].orders(problem, 6), name)
        except ValueError:
            continue
        assert found.value <= search.value * (1 + 1e-9), name


def test_the_best_rate_comes_before_the_makespan() -> None:
    problem = pipeline(chain(3), forward=1, backward=2, memory=3)
    found = solve(problem, 9, objective="rate", effort=1.0)
    assert found.value == found.period == found.value_bound == 3
    assert found.makespan == solve(problem, 9, effort=1.0).makespan


def test_a_schedule_to_start_from_is_timed_anew() -> None:
    problem = pipeline(v(4), forward=1, split=(1, 1), memory=8)
    found = solve(problem, 8, objective="span", start=baseline("zb-v", problem, 8), time_limit=0.0)
    assert found.value == 48


@pytest.mark.parametrize(("objective", "micro_batches", "fault"), [
    ("speed", 4, "objective is 'speed', it must be one of makespan, span, rate"),
    ("latency", 4, "a latency is searched for by weft.latency or weft.solve"),
    ("rate", 1, "the objective 'rate' means nothing for so few micro-batches (1): no whole period fits between warm-up "
                "and cool-down; give at least 3"),
])
def test_what_means_nothing_is_refused(objective: str, micro_batches: int, fault: str) -> None:
    with pytest.raises(ValueError, match=re.escape(fault)):
        solve(pipeline(chain(3), memory=3), micro_batches, objective=objective, effort=1.0)


def test_a_rate_that_time_does_not_suffice_for_is_open() -> None:
    with pytest.raises(NoneFound, match="uniform: no steady state was found within the limit; give it more time"):
        solve(pipeline(chain(3), memory=3), 9, objective="rate", time_limit=0.0)


def test_a_steady_state_that_needs_more_micro_batches_is_open_while_others_are_not_looked_for() -> None:
    problem = pipeline(v(2), forward=2, split=(1, 3), memory=6)
    with pytest.raises(NoneFound, match=re.escape("takes more micro-batches (2): no whole period fits between warm-up "
                                                  "and cool-down; give at least 5, or more time")):
        solve(problem, 2, objective="rate", effort=0.001)
    assert solve(problem, 2, objective="rate", effort=0.05).value == 12


def test_a_rate_without_balance_is_refused() -> None:
    problem = Problem("leaves", (Device("x", 9),), (Block("a", BlockKind.OTHER, (0,), 1, (1,)),))
    with pytest.raises(ValueError, match="leaves: the objective 'rate' means nothing here: a micro-batch does not"):
        solve(problem, 4, objective="rate", effort=1.0)
    assert solve(problem, 4, objective="span", effort=1.0).value == 4


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["span", "rate"])
def test_an_unrolled_schedule_states_what_is_true_of_it(objective: str) -> None:
    found = solve(pipeline(v(3), forward=1, split=(1, 1), memory=4), 12, objective=objective, effort=2.0)
    assert found.repetend is not None
    longer = unroll(found, 30)
    verdict = judge_claims(schedule_to_json(longer), longer)
    assert longer.objective == objective and not verdict.false
    assert longer.value_bound <= longer.value
    if objective == "span":
        assert "solver.span" in verdict.verified and longer.value == found.value + 18 * (found.period or 0)
