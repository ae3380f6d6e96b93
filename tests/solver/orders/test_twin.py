"""Annealing: what it finds passes the judge, and is optimal where the optimum is known. Both kernels alike."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles.generated import drawn
from tests.oracles.whole import least_makespan
from tests.support.builders import any_order
from tests.support.kernels import KERNELS, KINDS, Kernel, case, tight
from weft.solver.judge.validate import validate
from weft.solver.orders.tables import Tables
from weft.solver.orders.timed_rows import NEVER
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem
from weft.solver.schedule import Schedule
from weft.solver.ticks import TickProblem
from weft.solver.timing import time_orders

kernels = pytest.mark.parametrize("kernel_class", KERNELS)

#: Job shops: per job, its machines in order with the time on each. H. Fisher and G. L. Thompson, "Probabilistic
#: learning combinations of local job-shop scheduling rules", in: Industrial Scheduling, Prentice Hall 1963: 6 jobs on 6
#: machines, optimum 55.
FT06 = """
2 1 0 3 1 6 3 7 5 3 4 6
1 8 2 5 4 10 5 10 0 10 3 4
2 5 3 4 5 8 0 9 1 1 4 7
1 5 0 5 2 5 3 3 4 8 5 9
2 9 1 3 4 5 5 4 0 3 3 1
1 3 3 3 5 9 0 10 4 4 2 1
"""
#: S. Lawrence, "Resource constrained project scheduling", Carnegie-Mellon University 1984: LA01, 10 x 5, optimum 666,
#: which is the load of its last machine.
LA01 = """
1 21 0 53 4 95 3 55 2 34
0 21 3 52 4 16 2 26 1 71
3 39 4 98 1 42 2 31 0 12
1 77 0 55 4 79 2 66 3 77
0 83 3 34 2 64 1 19 4 37
1 54 2 43 4 79 0 92 3 62
3 69 4 77 1 87 2 87 0 93
2 38 0 60 1 41 3 24 4 83
3 17 1 49 4 25 0 44 2 98
4 77 3 79 2 43 1 75 0 96
"""


def job_shop(text: str) -> Problem:
    """One micro-batch, whose blocks are the operations of all jobs; nothing takes memory."""
    blocks, machines = [], 0
    for job, line in enumerate(text.split("\n")[1:-1]):
        numbers = [*map(int, line.split())]
        for k, (machine, time) in enumerate(zip(numbers[::2], numbers[1::2], strict=True)):
            after = (Dependency(f"{job}.{k - 1}"),) if k else ()
            blocks.append(Block(f"{job}.{k}", BlockKind.OTHER, (machine,), time, (0,), (), after))
            machines = max(machines, machine + 1)
    return Problem("job shop", tuple(Device(f"machine {m}") for m in range(machines)), tuple(blocks))


def started(kernel_class: type[Kernel], problem: Problem, micro_batches: int, seed: int) -> Kernel:
    tables = Tables(TickProblem.of(problem), micro_batches)
    kernel = kernel_class(tables)
    orders = any_order(problem, micro_batches, random.Random(seed), in_turn=True).orders
    assert kernel.set(tables.flat(orders))
    return kernel


@kernels
@given(st.sampled_from(KINDS), st.integers(0, 10**6), st.booleans())
def test_the_judge_agrees(kernel_class: type[Kernel], kind: str, seed: int, half: bool) -> None:
    some = tight(case(kind, seed)) if half else case(kind, seed)
    kernel, instance = kernel_class(some.tables), some.tables.instance
    if not kernel.set(some.flat):
        return
    mean = float(some.tables.duration.mean())
    for _ in range(3):
        kernel.anneal(60, mean, mean / 30, 10 * mean, seed)
        if kernel.best == NEVER:
            continue
        kernel.back_to_best()
        assert kernel.makespan == kernel.best and not kernel.overflow
        orders = some.tables.with_waits(kernel.best_rows, kernel.starts)
        found = Schedule(some.problem, some.micro_batches, time_orders(some.problem, some.micro_batches, orders), 0.0)
        validate(found)
        assert found.makespan == pytest.approx(instance.time(kernel.best))


@kernels
@pytest.mark.parametrize("number", range(25))
def test_annealing_finds_the_optimum_of_tiny_problems(kernel_class: type[Kernel], number: int) -> None:
    some = drawn(number)
    best, instance = least_makespan(some.problem, some.micro_batches), TickProblem.of(some.problem)
    kernel, mean = started(kernel_class, some.problem, some.micro_batches, number), sum(instance.durations)
    for seed in range(4):
        kernel.anneal(100, mean, mean / 100, 10.0 * mean, seed)
    assert kernel.best == NEVER if best is None else instance.time(kernel.best) == pytest.approx(float(best))


@kernels
@pytest.mark.parametrize(("shop", "best", "hot", "cold"), [(FT06, 55, 8.0, 0.3), (LA01, 666, 30.0, 2.0)])
def test_published_job_shops(kernel_class: type[Kernel], shop: str, best: int, hot: float, cold: float) -> None:
    kernel = started(kernel_class, job_shop(shop), 1, 0)
    for seed in range(8):
        kernel.anneal(1500, hot, cold, 0.0, seed)
        if kernel.best <= best:
            break
    assert kernel.best == best
