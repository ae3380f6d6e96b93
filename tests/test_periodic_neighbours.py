"""Neighbourhoods of steady states: what is found fits and is shorter, and what is held fixed is held exactly."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from solver.closure import UNRELATED, closure_bound
from solver.completion import repeat
from solver.cpsat import Budget
from solver.cyclic import Periodic, critical_blocks, in_order, lags_between
from solver.instance import Instance
from solver.periodic_list import list_periodic
from solver.periodic_neighbours import improve_nearby
from solver.problem import Block, Problem
from solver.schedule import Schedule
from solver.seeds import one_at_a_time
from solver.timing import time_orders
from solver.validate import validate
from tests.builders import loop, pipeline, v


def unequal(problem: Problem, seed: int) -> Problem:
    """``problem`` with durations drawn from 80 to 120 times what they are."""
    draw = random.Random(seed)
    blocks = [Block(block.name, block.kind, block.devices, block.duration * draw.randint(80, 120), block.memory,
                    block.workspace, block.after) for block in problem.blocks]
    return Problem(problem.name, problem.devices, tuple(blocks))


def judged(found: Periodic) -> None:
    problem, count = found.instance.problem, found.depth + 3
    validate(Schedule(problem, count, time_orders(problem, count, repeat(found, count)), 0.0))


@pytest.mark.parametrize(("devices", "memory"), [(v(8), 10), (loop(8), 12), (v(12), 12)])
def test_shorter_periods_are_found_and_fit(devices: list[int], memory: int) -> None:
    instance = Instance.of(unequal(pipeline(devices, forward=1, backward=2, memory=memory), 1))
    low = closure_bound(instance, sum(instance.durations))
    start = list_periodic(instance, low, sum(instance.durations))
    assert start is not None and start.period > low
    heard: list[Fraction] = []
    found = improve_nearby(start, low, Budget(deterministic=10.0), lambda better: heard.append(better.period),
                           deterministic=1.0)
    assert low <= found.period < start.period
    assert heard == sorted(heard, reverse=True) and heard[-1] == found.period
    judged(found)


def test_one_at_a_time_is_left_behind() -> None:
    """Four equal stages with room for all: from 12 to 3, the load."""
    instance = Instance.of(pipeline([0, 1, 2, 3], forward=1, backward=2, memory=4))
    found = improve_nearby(one_at_a_time(instance), 3, Budget(deterministic=10.0), deterministic=5.0)
    assert found.period == 3
    judged(found)


def test_no_shorter_than_asked_for() -> None:
    instance = Instance.of(pipeline([0, 1, 2, 3], forward=1, backward=2, memory=4))
    start = one_at_a_time(instance)
    assert improve_nearby(start, 12, Budget(), deterministic=5.0) is start


@pytest.mark.parametrize("seed", range(5))
def test_lags_of_a_fixed_order_hold_in_its_schedule_and_are_met_by_some(seed: int) -> None:
    instance = Instance.of(unequal(pipeline(v(5), forward=1, split=(1, 1), memory=6), seed))
    found = list_periodic(instance, instance.heaviest_load, sum(instance.durations))
    assert found is not None and found.period.denominator == 1
    lags = lags_between(instance, found.rings, int(found.period), range(len(instance.durations)))
    assert lags is not None
    for i in instance.blocks:
        for j in instance.blocks:
            assert lags[i, j] <= found.starts[j] - found.starts[i]
    # Starts as early as block 0 allows are a schedule too: the lags from it say all.
    from_first = [int(lags[0, j]) for j in instance.blocks]
    assert min(from_first) > UNRELATED // 2
    earliest = Periodic(instance, found.period, tuple(map(Fraction, from_first)))
    again = in_order(instance, earliest.rings)
    assert again is not None and again.period == found.period


def test_no_lags_where_the_fixed_order_does_not_allow_the_period() -> None:
    instance = Instance.of(unequal(pipeline(v(5), forward=1, backward=2, memory=6), 0))
    found = list_periodic(instance, instance.heaviest_load, sum(instance.durations))
    assert found is not None
    assert lags_between(instance, found.rings, int(found.period) - 1, range(4)) is None


def test_the_critical_blocks_are_as_long_as_the_period() -> None:
    """One device after the other and one micro-batch at a time: all blocks wait for each other in turn."""
    instance = Instance.of(pipeline([0, 1], forward=1, backward=2, memory=1))
    assert sorted(critical_blocks(one_at_a_time(instance))) == [0, 1, 2, 3]
