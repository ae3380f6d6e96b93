"""Blocks that hold every device, taken out of time: never more than the optimum, and exact without transfer times."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import assume
from hypothesis import strategies as st

from tests.oracles.brute import least_whole_period
from tests.support import cases, for_all
from weft.solver import Block, BlockKind, Budget, Dependency, Device, Problem, solve
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.period.reductions.barriers import Contraction
from weft.solver.period.search import find_period
from weft.solver.relations.min_dist import least_open_period, takes_before_giving
from weft.solver.ticks import TickProblem


@st.composite
def spanned(draw: st.DrawFn, *, lags: bool) -> Problem:
    """A tiny problem with a block that holds all its devices, between random other blocks."""
    problem = draw(cases(max_devices=2, max_blocks=3, whole=True, balanced=True, links=False)).problem
    assume(len(problem.devices) == 2)
    before, after = draw(st.booleans()), draw(st.booleans())
    first, last = problem.topological_order[0], problem.topological_order[-1]
    lag = draw(st.sampled_from([0, 1, 2])) if lags else 0
    blocks = [block if lags else replace(block, after=tuple(replace(wait, lag=0) for wait in block.after))
              for block in problem.blocks]
    span = Block("span", BlockKind.OTHER, (0, 1), draw(st.integers(1, 3)), (), (),
                 (Dependency(blocks[first].name, lag),) if before else ())
    if after and first != last:
        blocks[last] = replace(blocks[last], after=(*blocks[last].after, Dependency("span", lag)))
    return replace(problem, blocks=(*blocks, span))


@for_all(spanned(lags=True), tries=80)
def test_the_contracted_bound_never_exceeds_the_optimum(problem: Problem) -> None:
    instance = TickProblem.of(problem)
    start = one_at_a_time(instance)
    assume(start.period * instance.tick <= 9 and takes_before_giving(instance))
    contraction = Contraction.of(instance)
    assume(contraction is not None)
    assert contraction is not None
    least = least_whole_period(problem, math.ceil(start.period * instance.tick))
    assert least is not None
    # The closure refutes whole ticks; tiny problems have a tick of one unit or a whole number of them.
    inner = least_open_period(contraction.inner, math.ceil(contraction.contract(start).period)) - 1
    assert (inner + contraction.length) * instance.tick < least


def test_spans_at_one_moment_run_in_the_order_in_which_they_wait() -> None:
    """The last block of a micro-batch ends where the first of the next begins, and that waits for it."""
    devices = (Device("gpu0"), Device("gpu1"))
    blocks = (Block("middle", BlockKind.OTHER, (0,), 2, after=(Dependency("first"),)),
              Block("last", BlockKind.OTHER, (0, 1), 2, after=(Dependency("middle"),)),
              Block("first", BlockKind.OTHER, (1, 0), 5, after=(Dependency("last", distance=1),)))
    for n in (1, 4):
        found = solve(Problem("p", devices, blocks), n, effort=0.1)
        assert (found.makespan, found.period) == (9 * n, 9)


@for_all(spanned(lags=False), tries=80)
def test_without_transfer_times_the_contracted_optimum_expands_to_the_optimum(problem: Problem) -> None:
    instance = TickProblem.of(problem)
    start = one_at_a_time(instance)
    assume(start.period * instance.tick <= 9 and takes_before_giving(instance))
    search = find_period(instance, start, Budget(deterministic=20.0))
    assert search.proven
    assert math.ceil(search.best.period * instance.tick) == least_whole_period(
        problem, math.ceil(start.period * instance.tick))


@for_all(spanned(lags=False), tries=80)
def test_contracting_and_expanding_keeps_the_order(problem: Problem) -> None:
    instance = TickProblem.of(problem)
    contraction = Contraction.of(instance)
    assume(contraction is not None)
    assert contraction is not None
    start = one_at_a_time(instance)
    inner = contraction.contract(start)
    assert inner.period <= start.period - contraction.length
    back = contraction.expand(inner)
    assert back.period <= inner.period + contraction.length
    assert contraction.contract(back).period <= inner.period
