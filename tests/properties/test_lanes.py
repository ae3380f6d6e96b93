"""The search on problems with lanes, against brute force and against the plain problem that some of them are."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import ceil

import pytest

from tests.oracles.brute import least_latency_on_grid, least_whole_period
from tests.oracles.generated import drawn
from tests.oracles.lanes import drawn_with_lanes, on_one_lane
from tests.oracles.wide import least_makespan
from tests.support.examples import slow
from weft.solver import BASELINES, Budget, Infeasible, NoneFound, NotApplicable, Problem, Schedule, baseline, solve
from weft.solver.judge.validate import statements, violations
from weft.solver.latency.search import least_latency
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.period.periodic import Periodic, fits_pools
from weft.solver.period.reductions.multi_batch import in_copies, repeat_copies
from weft.solver.period.search import find_period
from weft.solver.problem.rounds import Run
from weft.solver.relations.fixed_order import FixedOrder
from weft.solver.relations.min_dist import pools_take_first, takes_before_giving
from weft.solver.relations.pool_pass import fits_pools as fits_memory
from weft.solver.relations.pool_pass import paced
from weft.solver.step.order_model import reorder
from weft.solver.step.stretch import at_its_times, unroll
from weft.solver.ticks import TickProblem


def micro_batches_of(problem: Problem) -> int:
    return max(1, 6 // len(problem.blocks))


def solved(problem: Problem, micro_batches: int) -> Schedule | None:
    try:
        found = solve(problem, micro_batches, effort=1.0)
    except Infeasible as refusal:
        assert not isinstance(refusal, NoneFound)
        return None
    assert violations(found) == []
    return found


def steady(problem: Problem) -> Periodic | None:
    """The least period of a problem that has one, proven."""
    instance = TickProblem.of(problem)
    if not (instance.balanced and takes_before_giving(instance)):
        return None
    try:
        start = one_at_a_time(instance)
    except NotApplicable:
        return None
    assert fits_pools(start)
    bracket = find_period(instance, start, Budget(deterministic=4.0))
    assert bracket.proven
    assert fits_pools(bracket.best)
    return bracket.best


@pytest.mark.parametrize(("number", "balanced"), [
    *((number, True) for number in range(60)), *((number, False) for number in range(12)),
    *(slow(number, False) for number in range(12, 40))])
def test_the_least_makespan_is_that_of_brute_force(number: int, balanced: bool) -> None:
    """Bounds hold where something is given first or left, too."""
    problem = drawn_with_lanes(number, most_blocks=4, balanced=balanced)
    n = micro_batches_of(problem)
    found, best = solved(problem, n), least_makespan(problem, Run({None: (None,) * n}, n))
    if found is None or best is None:
        assert (found is None) == (best is None)
        return
    assert found.makespan_bound <= best
    if pools_take_first(TickProblem.of(problem)):
        assert found.makespan == best and (not balanced or found.makespan_bound == best)


@pytest.mark.parametrize("number", range(100, 160))
def test_the_least_period_is_that_of_brute_force(number: int) -> None:
    problem = drawn_with_lanes(number, most_blocks=4)
    best = steady(problem)
    if best is None:
        return
    tick = best.instance.tick
    assert ceil(best.period * tick) == least_whole_period(problem, ceil(one_at_a_time(best.instance).period * tick))
    count = best.depth + 3
    assert violations(at_its_times(best, count)) == []
    assert fits_pools(repeat_copies(best, in_copies(best.instance, 2), 2))


@pytest.mark.parametrize("number", [7, 33, 49, 50, 61, 64])
def test_the_least_latency_is_bounded_by_brute_force(number: int) -> None:
    problem = drawn_with_lanes(number, most_blocks=3)
    best = steady(problem)
    if best is None:
        return
    limit = best.period + 1
    search = least_latency(best.instance, limit, best, Budget(deterministic=4.0))
    assert fits_pools(search.best)
    tick = best.instance.tick
    brute = least_latency_on_grid(problem, limit * tick, Fraction(1, 2))
    assert brute is not None
    assert search.bound * tick <= brute[1]
    assert search.best.latency * tick >= search.bound * tick


@pytest.mark.parametrize("number", range(0, 72, 3))
def test_a_problem_with_one_lane_a_pool_is_the_plain_problem(number: int) -> None:
    case = drawn(number, most_operations=8)
    plain, laned = (solved(problem, case.micro_batches) for problem in (case.problem, on_one_lane(case.problem)))
    if plain is None or laned is None:
        assert plain is laned
        return
    assert (laned.makespan, laned.makespan_bound) == (plain.makespan, plain.makespan_bound)
    assert laned.period == plain.period
    assert laned.peak_memory[:len(plain.peak_memory)] == plain.peak_memory


@pytest.mark.parametrize("name", ["greedy", "stream"])
@pytest.mark.parametrize("number", range(0, 60, 3))
def test_known_schedules_keep_what_lanes_share(number: int, name: str) -> None:
    problem = drawn_with_lanes(number)
    try:
        made = baseline(name, problem, 4)
    except NotApplicable:
        return
    assert violations(made) == []


@pytest.mark.parametrize("number", [3, 11, 14, 16, 30, 39])
def test_a_schedule_with_lanes_unrolls(number: int) -> None:
    made = solved(drawn_with_lanes(number, most_blocks=4), 12)
    assert made is not None
    assert made.repetend is not None
    assert made.makespan == made.makespan_bound
    step = made.repetend.micro_batches
    for longer in (unroll(made, 12 + 5 * step), unroll(made, 12 - step)):
        assert violations(longer) == []
        assert statements(longer).false == []
        assert longer.period == made.period


@pytest.mark.parametrize("number", [3, 11, 14, 16, 30, 39, 114])
def test_a_stretch_ordered_anew_is_no_longer_and_fits(number: int) -> None:
    """What is before and behind it has starts too, and keeps its order."""
    problem, n = drawn_with_lanes(number, most_blocks=4), 5
    instance = TickProblem.of(problem)
    known = paced(instance, n, BASELINES["greedy"].orders(problem, n))
    assert known is not None
    before = FixedOrder(instance, n, known)
    for low, high in ((0, 2), (1, 4), (2, 5), (0, 5)):
        stretch = [(len(row) * low // 5, len(row) * high // 5) for row in known]
        found = reorder(before, stretch, Budget(deterministic=2.0))
        assert found.makespan <= before.makespan
        if found.orders is None:
            continue
        fixed = FixedOrder(instance, n, found.orders)
        assert fixed.makespan <= found.makespan
        assert fits_memory(instance, fixed.start)
        for row, new, (a, b) in zip(known, found.orders, stretch, strict=True):
            assert (tuple(row[:a]), tuple(row[b:])) == (tuple(new[:a]), tuple(new[b:]))


def test_lanes_without_memory_of_theirs_are_devices_without_a_limit() -> None:
    for number in range(40):
        problem = drawn_with_lanes(number)
        bare = replace(problem, blocks=tuple(
            replace(block, memory=(0,), workspace=(0,)) if problem.pool_of[block.devices[0]] != block.devices[0]
            else block for block in problem.blocks))
        assert not TickProblem.of(bare).mixed_pools
