"""Bounds against brute force on tiny problems, and each of their parts against valid schedules of larger ones."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st

import weft.solver.bounds.makespan
from tests.oracles.whole import least_makespan
from tests.support.builders import published
from tests.support.examples import for_all
from tests.support.strategies import Case, cases, pipelines, schedules
from weft.solver import Block, BlockKind, Dependency, Problem, Schedule, violations
from weft.solver.bounds import makespan_bound, steady_bound
from weft.solver.bounds.heads import heads, tails
from weft.solver.bounds.load import load_bound
from weft.solver.relations.graph import barriers, graph_of, without_barriers
from weft.solver.relations.implied_order import implied_order
from weft.solver.ticks import TickProblem


@st.composite
def spread_pipelines(draw: st.DrawFn, /, **sizes: int) -> Problem:
    """A pipeline with tight memory whose first and last block may hold all devices (an embedding)."""
    problem = draw(pipelines(**sizes))
    if not draw(st.booleans()):
        return problem
    everywhere = tuple(range(len(problem.devices)))
    into = Block("embed", BlockKind.FORWARD, everywhere, draw(st.integers(1, 3)))
    out = Block("unembed", BlockKind.BACKWARD, everywhere, draw(st.integers(1, 3)), after=tuple(
        Dependency(block.name) for block in problem.blocks if block.kind is not BlockKind.FORWARD))
    blocks = tuple(block if block.after else replace(block, after=(Dependency("embed"),)) for block in problem.blocks)
    return replace(problem, blocks=(into, *blocks, out))


@for_all(cases(max_devices=3, max_blocks=4, max_micro_batches=3), tries=75)
def test_bounds_never_exceed_the_optimum(case: Case) -> None:
    assume(len(case.problem.blocks) * case.micro_batches <= 8)
    best = least_makespan(case.problem, case.micro_batches)
    assert best is not None
    instance = TickProblem.of(case.problem)
    assert makespan_bound(instance, case.micro_batches) * instance.tick <= best
    assert load_bound(case.problem, case.micro_batches) <= best


@for_all(spread_pipelines(max_devices=2), st.integers(2, 4), tries=60)
def test_bounds_never_exceed_the_optimum_of_a_pipeline(problem: Problem, micro_batches: int) -> None:
    assume(len(problem.blocks) * micro_batches <= 12)
    best = least_makespan(problem, micro_batches)
    assume(best is not None)
    assert best is not None
    instance = TickProblem.of(problem)
    assert makespan_bound(instance, micro_batches) * instance.tick <= best
    assert load_bound(problem, micro_batches) <= best


@for_all(schedules(max_micro_batches=7), tries=75)
def test_every_schedule_keeps_the_implied_order_heads_and_tails(schedule: Schedule) -> None:
    _check(schedule)


@for_all(spread_pipelines(), st.integers(2, 8), tries=50)
def test_known_schedules_under_tight_memory_keep_the_implied_order_heads_and_tails(problem: Problem, n: int) -> None:
    for schedule in published(problem, n).values():
        if not violations(schedule, limit=1):
            _check(schedule)


def _check(schedule: Schedule) -> None:
    problem, n = schedule.problem, schedule.micro_batches
    instance = TickProblem.of(problem)
    graph = graph_of(instance)
    order = implied_order(instance, graph, n)
    start = {(o.block, o.micro_batch): Fraction(o.start) / instance.tick for o in schedule.operations}
    slack = Fraction(schedule.makespan) / instance.tick / 10**9
    size = len(problem.blocks)
    for i, j in np.argwhere(order[:size, :size] < n).tolist():
        for m in range(n - int(order[i, j])):
            end = start[i, m] + (instance.durations[i] - slack) / instance.inflation
            assert end <= start[j, m + int(order[i, j])] + slack
    makespan = Fraction(schedule.makespan) / instance.tick * instance.inflation
    for crowded in (0, 3, n):
        head, tail = heads(graph, order, n, crowded), tails(graph, order, n, crowded)
        for (i, m), begin in start.items():
            assert int(head[i, m]) <= begin * instance.inflation + slack
            assert int(tail[i, m]) <= makespan - begin - instance.durations[i] + slack
    assert makespan_bound(instance, n) <= makespan + slack
    common = barriers(instance)
    if common:
        assert n * sum(instance.durations[i] for i in common) \
            + makespan_bound(without_barriers(instance, common), n) <= makespan + slack


@for_all(spread_pipelines(max_devices=3), st.integers(8, 30), tries=40)
def test_many_micro_batches_are_bounded_like_few(problem: Problem, n: int) -> None:
    """Not laid out one by one, a bound is no larger, and it grows as the steady state must."""
    instance = TickProblem.of(problem)
    exact = makespan_bound(instance, n)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weft.solver.bounds.makespan, "_LAID_OUT", 1)  # four micro-batches at either end
        bound = makespan_bound(instance, n)
        assert bound <= exact
        many = makespan_bound(instance, 1000)
    assert many >= 900 * steady_bound(instance)
