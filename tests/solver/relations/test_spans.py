"""The least span of an order: against a linear programme over all start times, and on cases that paper does."""

from __future__ import annotations

import random

import pytest

from tests.oracles.generated import drawn
from tests.oracles.spans import span_of_order
from tests.support.builders import any_order
from weft.solver.judge.spans import span_of
from weft.solver.judge.validate import violations
from weft.solver.problem import Block, BlockKind, Dependency, Device, Link, Problem
from weft.solver.relations.fixed_order import FixedOrder
from weft.solver.relations.spans import least_span
from weft.solver.schedule import Schedule
from weft.solver.ticks import TickProblem
from weft.solver.timing import Orders, time_orders


def retimed(problem: Problem, micro_batches: int, orders: Orders) -> tuple[float, Schedule]:
    instance = TickProblem.of(problem)
    found = least_span(FixedOrder(instance, micro_batches, orders))
    return instance.time(found.span), Schedule(problem, micro_batches,
                                               time_orders(problem, micro_batches, orders, found.begins), 0.0)


@pytest.mark.parametrize("seed", range(120))
def test_it_is_what_a_linear_programme_says(seed: int) -> None:
    problem, micro_batches = drawn(seed).problem, 1 + seed % 4
    orders = [[op[:2] for op in row]
              for row in any_order(problem, micro_batches, random.Random(seed)).device_orders]
    span, schedule = retimed(problem, micro_batches, orders)
    assert span == pytest.approx(span_of_order(problem, micro_batches, orders), rel=1e-7)
    assert span_of(schedule)[0] == pytest.approx(span, rel=1e-7)  # the judge sees the same in the times
    assert not violations(schedule, capacities=False, in_turn=False)


def test_two_machines_can_need_more_than_either() -> None:
    """Each device waits for the other between two blocks of its own: 3 and 4 alone, but 3.5 is not enough for both."""
    blocks = (Block("a", BlockKind.OTHER, (0,), 1, (0,)),
              Block("b", BlockKind.OTHER, (1,), 1, (0,)),
              Block("c", BlockKind.OTHER, (1,), 1, (0,), (), (Dependency("a", 4),)),
              Block("d", BlockKind.OTHER, (0,), 1, (0,), (), (Dependency("b", 3),)))
    problem = Problem("crossed", (Device("x"), Device("y")), blocks)
    span, _ = retimed(problem, 1, [[(0, 0), (3, 0)], [(1, 0), (2, 0)]])
    assert span == 5.5  # a to the end of c: 6; b to the end of d: 5; the mean


def test_a_link_counts_as_a_device_does() -> None:
    problem = Problem("joined", (Device("a"), Device("b")), (
        Block("x", BlockKind.OTHER, (0,), 1, (0,)),
        Block("y", BlockKind.OTHER, (1,), 1, (0,), (), (Dependency("x", 3, "wire"),))), (Link("wire", 0, 1),))
    span, schedule = retimed(problem, 4, [[(0, m) for m in range(4)], [(1, m) for m in range(4)]])
    assert span == span_of(schedule)[0] == 12
