"""Spans and periods of orders: those of slower and simpler code, and the least ones where brute force knows them."""

from __future__ import annotations

import random
from math import ceil

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.oracles.brute import least_chain_period, least_whole_period
from tests.oracles.generated import drawn
from tests.oracles.spans import least_span
from tests.support.builders import any_order, chain, judged, loop, pipeline, uneven, v
from tests.support.kernels import KERNELS, KINDS, Case, Kernel, cyclic
from weft.solver.judge.spans import span_of
from weft.solver.judge.validate import validate
from weft.solver.orders.tables import Tables
from weft.solver.orders.timed_rows import NEVER
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.period.periodic import in_order
from weft.solver.problem import Block, BlockKind, Dependency, Device, Link, Problem
from weft.solver.relations.fixed_order import FixedOrder
from weft.solver.relations.spans import least_span as span_of_order
from weft.solver.schedule import Schedule
from weft.solver.ticks import TickProblem
from weft.solver.timing import time_orders

kernels = pytest.mark.parametrize("kernel_class", KERNELS)
objectives = st.sampled_from(["span", "period"])
#: Ticks so much finer that the fractions of tiny problems are whole.
FINER = 60


def value_of(some: Case, kernel: Kernel) -> int:
    """What the best orders, or else the given ones, come to by other code; the judge objects to none that fit."""
    fits, instance = kernel.best < NEVER, some.tables.instance
    orders = some.tables.orders(kernel.best_rows if fits else some.flat)
    if some.tables.objective == "period":
        found = in_order(instance, orders)
        assert found is not None
        if fits:
            judged(found)
        return ceil(found.period)
    least = span_of_order(FixedOrder(instance, some.micro_batches, orders))
    timed = time_orders(some.problem, some.micro_batches, orders, least.begins)
    schedule = Schedule(some.problem, some.micro_batches, timed, 0.0)
    if fits:
        validate(schedule)
    assert span_of(schedule)[0] == pytest.approx(instance.time(least.span), rel=1e-7)
    return ceil(least.span)


@kernels
@given(objectives, st.sampled_from(KINDS), st.integers(0, 10**6))
def test_they_are_what_other_code_says(kernel_class: type[Kernel], objective: str, kind: str, number: int) -> None:
    some = cyclic(objective, kind, number)
    assume(some is not None)
    assert some is not None
    kernel, mean = kernel_class(some.tables), float(some.tables.duration.mean())
    assert kernel.set(some.flat) and kernel.makespan == value_of(some, kernel)
    kernel.anneal(60, mean, mean / 30, 10 * mean, number)
    if kernel.best < NEVER:
        kernel.back_to_best()
        assert kernel.makespan == kernel.best == value_of(some, kernel) and not kernel.overflow


@pytest.mark.parametrize("number", range(25))
def test_annealing_finds_the_least_span_of_tiny_problems(number: int) -> None:
    some = drawn(number)
    instance = TickProblem.of(some.problem).refined(FINER)
    tables = Tables(instance, some.micro_batches, "span")
    least, mean = least_span(some.problem, some.micro_batches), sum(instance.durations)
    start = any_order(some.problem, some.micro_batches, random.Random(number), in_turn=True)
    for kernel_class in KERNELS:
        kernel = kernel_class(tables)
        assert kernel.set(tables.flat(start.orders))
        for seed in range(4):
            kernel.anneal(100, mean, mean / 100, 10.0 * mean, seed)
        assert kernel.best == NEVER if least is None else instance.time(kernel.best) == pytest.approx(least)


def annealed(kernel_class: type[Kernel], problem: Problem) -> int:
    """The least whole period found from one micro-batch at a time."""
    instance = TickProblem.of(problem)
    tables = Tables(instance, 1, "period")
    kernel, mean = kernel_class(tables), sum(instance.durations)
    assert kernel.set(tables.flat(one_at_a_time(instance).rings)) and not kernel.overflow
    for seed in range(4):
        kernel.anneal(200, mean, mean / 100, 10.0 * mean, seed)
    return int(kernel.best)


@pytest.mark.parametrize("number", [0, 1, *range(3, 11), 15])  # trying everything takes 30 s of 2, and some of 11
def test_annealing_finds_the_least_period_of_tiny_pipelines(number: int) -> None:
    dice = random.Random(number)
    devices, memory = [(chain(2), 3), (chain(3), 4), (v(2), 4), (loop(2), 5)][number % 4]
    problem = uneven(pipeline(devices, memory=dice.randint(2, memory)), dice, 3, number % 2)
    least = least_chain_period(problem, 60)
    assert [annealed(kernel_class, problem) for kernel_class in KERNELS] == [least] * len(KERNELS)


@kernels
def test_a_period_of_blocks_on_both_devices(kernel_class: type[Kernel]) -> None:
    """What both run has one order on both, whatever else stands in between."""
    both = (0, 1)
    blocks = (Block("a", BlockKind.OTHER, both, 1, (0, 0)), Block("b", BlockKind.OTHER, (0,), 2, (0,),
                                                                 after=(Dependency("a"),)),
              Block("c", BlockKind.OTHER, both, 1, (0, 0), after=(Dependency("b"),)),
              Block("d", BlockKind.OTHER, (1,), 2, (0,), after=(Dependency("c"),)))
    problem = Problem("both", (Device("x"), Device("y")), blocks)
    assert annealed(kernel_class, problem) == least_whole_period(problem, 14) == 4


@kernels
def test_a_link_is_a_machine_like_others(kernel_class: type[Kernel]) -> None:
    """Two transfers of 3 keep the link for 6 in every period."""
    blocks = (Block("a", BlockKind.OTHER, (0,), 1, (0,)), Block("b", BlockKind.OTHER, (0,), 1, (0,)),
              *(Block(f"after {a}", BlockKind.OTHER, (1,), 1, (0,), after=(Dependency(a, 3, "wire"),)) for a in "ab"))
    assert annealed(kernel_class, Problem("wired", (Device("x"), Device("y")), blocks, (Link("wire", 0, 1),))) == 6


@kernels
def test_rings_that_wait_for_themselves_are_told(kernel_class: type[Kernel]) -> None:
    """The second block of the pipeline before the first of the same micro-batch, on one device."""
    instance = TickProblem.of(pipeline(chain(1)))
    tables = Tables(instance, 1, "period")
    kernel = kernel_class(tables)
    rows = one_at_a_time(instance).rings
    assert kernel.set(tables.flat(rows))
    assert not kernel.set(tables.flat([list(reversed(row)) for row in rows])) and kernel.makespan == NEVER
