"""Rounds of as many micro-batches as one device's memory holds: by hand, and against exact least makespans."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.oracles.whole import TooLarge, least_makespan
from tests.support.builders import chain, pipeline, uneven, v
from weft.solver.bounds.in_flight import in_flight_bound
from weft.solver.problem import Problem
from weft.solver.ticks import TickProblem


def bound(problem: Problem, micro_batches: int) -> float:
    instance = TickProblem.of(problem)
    return float(in_flight_bound(instance, micro_batches) * instance.tick)


def test_rounds_follow_each_other_through_the_whole_chain() -> None:
    """Two of five fit: two rounds of 4 x 3, then one micro-batch; of four, the last round has two on each device."""
    assert bound(pipeline(chain(4), memory=2), 5) == 3 * 4 * 3
    assert bound(pipeline(chain(4), memory=2), 4) == 2 * 4 * 3 + 3
    assert bound(pipeline(chain(4), memory=2, lag=1), 5) == 3 * (4 * 3 + 2 * 3)


def test_memory_that_holds_all_says_nothing() -> None:
    assert bound(pipeline(chain(4), memory=5), 5) == bound(pipeline(chain(4)), 5) == 0


def test_the_tightest_memory_counts() -> None:
    """The third device holds one: its forward to its backward, and what leads there and back."""
    problem = pipeline(chain(4), memory=5)
    devices = (*problem.devices[:2], replace(problem.devices[2], memory=1), problem.devices[3])
    assert bound(replace(problem, devices=devices), 5) == 2 + 5 * (3 + 3) + 4


@pytest.mark.parametrize("number", range(24))
def test_no_schedule_is_shorter(number: int) -> None:
    chance = random.Random(number)
    shape = chance.choice((chain(2), chain(3), v(2)))
    split = chance.choice((None, (1, 1)))
    problem = uneven(pipeline(shape, split=split, memory=chance.choice((1, 2, 3))), chance, most=4, lags=2)
    micro_batches = chance.choice((2, 3, 4))
    try:
        least = least_makespan(problem, micro_batches)
    except TooLarge:
        pytest.skip("too large for the oracle")
    assert least is None or bound(problem, micro_batches) <= least
