"""V shapes, and the periods that they refute: in whole ticks all that do not work, in cells never one that does."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import ceil

import pytest
from hypothesis import strategies as st

from tests.support.builders import chain, loop, pipeline, tight_v, uneven, v, waves
from tests.support.examples import for_all
from weft.solver.cpsat.budget import Budget, Slice
from weft.solver.period import Bracket, find_period
from weft.solver.period.climb import refute
from weft.solver.period.decide import REFUTED, decide
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.period.refuters.v_shape import VShape
from weft.solver.period.refuters.v_shape_dp import VPatterns
from weft.solver.period.structure.v_shape import V
from weft.solver.period.technique import Task
from weft.solver.problem import Device, Problem
from weft.solver.relations.min_dist import least_open_period
from weft.solver.ticks import TickProblem


def shape_of(problem: Problem) -> V | None:
    return V.of(TickProblem.of(problem))


def refuted(shape: V, period: int, cells: int) -> bool:
    return VPatterns(shape, period, cells).refuted(Budget())


def with_amounts(problem: Problem, capacity: int, amounts: dict[str, int], workspace: int) -> Problem:
    """``problem`` with ``amounts`` of memory that forwards take and backwards give back, and workspace for each."""
    return replace(problem, devices=tuple(Device(device.name, capacity) for device in problem.devices), blocks=tuple(
        replace(block, memory=(amounts[block.name] if block.name[0] == "f" else -amounts["f" + block.name[1:]],),
                workspace=(workspace,)) for block in problem.blocks))


def test_a_v_of_two_chunks_is_a_v_shape() -> None:
    """Device d has the stages d and 5 - d; in and out twice, the last ends a forward and a backward of all later."""
    problem = pipeline(v(3), memory=8)
    shape = shape_of(problem)
    assert shape is not None
    assert [[problem.blocks[i].name for i in row] for row in shape.rows] == [
        [f"f{d}", f"f{5 - d}", f"b{5 - d}", f"b{d}"] for d in range(3)]
    assert shape.times == ((0, 5, 6, 16), (1, 4, 8, 14), (2, 3, 10, 12))
    assert shape.capacities == (8, 8, 8)
    assert [(held.kept, held.inner) for held in shape.levels] == [(1, 1)] * 3


def test_devices_in_any_order_are_the_same_v_shape() -> None:
    problem = pipeline([2, 0, 1, 1, 0, 2], memory=8)
    shape, straight = shape_of(problem), shape_of(pipeline(v(3), memory=8))
    assert shape is not None and straight is not None
    assert (shape.rows, shape.times) == (straight.rows, straight.times)


@pytest.mark.parametrize("problem", [
    pipeline(chain(3), memory=3),  # two lanes
    pipeline(loop(3), memory=9),  # does not turn
    pipeline(waves(3, 2), memory=9),  # turns more often
    pipeline(v(3)),  # unlimited memory
    pipeline(v(3), backward=None, memory=9),  # two lanes, and nothing is given back
    pipeline([0, 1, 2, 2, 0, 1], memory=9),  # does not come back the same way
], ids=str)
def test_what_is_no_v_shape(problem: Problem) -> None:
    assert shape_of(problem) is None


@for_all(st.integers(2, 3), st.integers(0, 9999), st.integers(2, 9), st.integers(0, 2), tries=36)
def test_in_whole_ticks_exactly_the_impossible_is_refuted(devices: int, seed: int, memory: int, lags: int) -> None:
    """CP-SAT decides the whole period, block by block; amounts differ, and some blocks need workspace."""
    chance = random.Random(seed)
    problem = uneven(pipeline(v(devices), memory=memory), chance, most=4, lags=lags)
    amounts = {f"f{s}": chance.randint(1, 2) for s in range(2 * devices)}
    problem = with_amounts(problem, memory, amounts, chance.randint(0, 1))
    instance, shape = TickProblem.of(problem), shape_of(problem)
    assert shape is not None
    low = instance.heaviest_load
    for period in range(low, low + 24, 3):
        verdict = decide(instance, period, Slice(Budget(), 60.0, 60.0))
        assert refuted(shape, period, period) == (verdict is REFUTED)


@for_all(st.sampled_from([3, 5, 8]), st.booleans(), st.integers(0, 999), st.sampled_from([1.0, 1.3, 2.0]),
         st.integers(0, 3), st.sampled_from([9, 32, 48]), tries=24)
def test_no_period_that_works_is_refuted(devices: int, split: bool, seed: int, cap: float, lags: int,
                                         cells: int) -> None:
    memory = max(2, round(cap * devices))
    problem = uneven(pipeline(v(devices), split=(1, 1) if split else None, memory=memory), random.Random(seed),
                     lags=lags)
    instance, shape = TickProblem.of(problem), shape_of(problem)
    assert shape is not None
    found = find_period(instance, one_at_a_time(instance), Budget(), deterministic=0.5).best
    assert not refuted(shape, ceil(found.period), cells)


def test_amounts_that_differ_and_are_large() -> None:
    """Bytes as they come from profiles, workspace included: nothing that works is refuted, but much that does not."""
    chance = random.Random(5)
    problem = with_amounts(uneven(pipeline(v(4), memory=8), random.Random(3), most=900), 16 * 10**9,
                           {f"f{s}": chance.randint(10**9, 3 * 10**9) for s in range(8)}, 10**8 + 1)
    instance, shape = TickProblem.of(problem), shape_of(problem)
    assert shape is not None
    search = find_period(instance, one_at_a_time(instance), Budget(), deterministic=20.0)
    assert search.proven
    period = ceil(search.best.period)
    assert not refuted(shape, period, 96)
    assert refuted(shape, int(0.97 * period), 96)


def test_a_great_many_turns() -> None:
    """Room for more micro-batches than fit into a byte."""
    problem = with_amounts(uneven(pipeline(v(2), memory=8), random.Random(3), most=900), 300 * 10**9,
                           dict.fromkeys(("f0", "f1", "f2", "f3"), 10**9), 0)
    instance, shape = TickProblem.of(problem), shape_of(problem)
    assert shape is not None
    assert not refuted(shape, instance.heaviest_load, 9)


@pytest.mark.slow
def test_finer_cells_refute_nearly_all_that_does_not_work() -> None:
    """Of a V of two chunks with memory for four activations on eight devices, where least distances are 14 % off."""
    instance = TickProblem.of(tight_v())
    start = one_at_a_time(instance)
    search = find_period(instance, start, Budget(), deterministic=60.0)
    assert search.proven
    low = least_open_period(instance, ceil(start.period)) - 1
    heard: list[Fraction] = []
    bracket = Bracket(instance, Fraction(low), start, lambda changed: heard.append(changed.refuted))
    shape = VShape.of(bracket, Task(low))
    assert shape is not None and not shape.exhausted
    refute(shape, bracket, Slice(Budget(workers=2), 60.0, 0.2))
    assert shape.helped and all(a < b for a, b in pairwise(heard))
    assert bracket.refuted_by == "v-shape" and bracket.counts.of("v-shape").proofs == len(heard)
    assert 0.985 * search.best.period <= heard[-1] < search.best.period


def test_cells_get_finer_until_they_are_a_tick() -> None:
    """A period of 18 ticks is told apart by ticks at once; one of 1,000 by cells of 32 ticks, 23, 17 and so on."""
    def made(near: int) -> VShape:
        instance = TickProblem.of(pipeline(v(3), memory=4))
        shape = VShape.of(Bracket(instance, Fraction(instance.heaviest_load), one_at_a_time(instance)), Task(near))
        assert shape is not None and shape.ready(time)
        return shape

    time = Slice(Budget(), 60.0, 60.0)
    coarse, fine = made(1000), made(18)
    assert not fine.exhausted and fine.sharpen(time) and fine.exhausted and not fine.ready(time)
    sharper = 0
    while not coarse.exhausted:
        sharper += coarse.sharpen(time)
    assert sharper == 7  # 32, 23, 17, 12, 9, 7, 5: of 4 ticks there would be more than 240


def test_a_spent_budget_refutes_nothing() -> None:
    shape = shape_of(pipeline(v(4), memory=4))
    assert shape is not None
    assert refuted(shape, 1, 9)
    assert not VPatterns(shape, 8, 9).refuted(Budget(seconds=0.0))
