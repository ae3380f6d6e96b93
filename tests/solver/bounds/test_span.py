"""The bound on the span holds for every order of tiny problems, and is met where that is known."""

from __future__ import annotations

import pytest

from tests.oracles.generated import drawn
from tests.oracles.spans import least_span
from tests.support.builders import chain, pipeline, v
from tests.support.examples import slow
from weft.solver.bounds.span import span_bound
from weft.solver.problem import Problem
from weft.solver.relations.graph import graph_of
from weft.solver.relations.implied_order import implied_order
from weft.solver.ticks import TickProblem


def bound_of(problem: Problem, micro_batches: int) -> float:
    instance = TickProblem.of(problem)
    ticks = span_bound(instance, micro_batches, implied_order(instance, graph_of(instance), micro_batches))
    return instance.bound(ticks, micro_batches)


@pytest.mark.parametrize("first", [0, 40, *map(slow, range(80, 240, 40))])
def test_no_order_of_a_tiny_problem_is_below_it(first: int) -> None:
    met = 0
    for number in range(first, first + 40):
        case = drawn(number, most_operations=8)
        try:
            least = least_span(case.problem, case.micro_batches, most_orders=400)
        except OverflowError:
            continue
        if least is not None:
            assert bound_of(case.problem, case.micro_batches) <= least * (1 + 1e-7), number
            met += bound_of(case.problem, case.micro_batches) >= least * (1 - 1e-7)
    assert met > 10


def test_a_device_whose_backward_comes_back_late_waits() -> None:
    """One micro-batch on four devices: the first waits for all others, the last works without a pause."""
    assert bound_of(pipeline(chain(4)), 1) == 12
    assert bound_of(pipeline(chain(4), memory=4), 4) == 21  # as long as a step; the work is 12


def test_tight_memory_makes_steps_follow_slowly() -> None:
    """One micro-batch at a time: 12 for each, of the first device's clock."""
    assert bound_of(pipeline(chain(4), memory=1), 5) == 60


def test_ample_memory_leaves_the_work() -> None:
    assert bound_of(pipeline(v(4), forward=0.5, split=(0.5, 0.5)), 8) == 24
