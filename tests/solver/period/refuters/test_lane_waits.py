"""Lanes of a pipeline, and the periods that the waits on them refute: never one that is known to work."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from math import ceil, inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracles.brute import least_whole_period
from tests.support.builders import chain, loop, pipeline, tight_v, uneven, v, waves
from tests.support.examples import examples
from weft.solver.cpsat.budget import Budget, Slice
from weft.solver.period.bracket import Bracket
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.period.refuters.lane_wait_dp import LanePatterns
from weft.solver.period.refuters.lane_waits import LaneWaits
from weft.solver.period.refuters.lane_weights import LaneWeights
from weft.solver.period.search import find_period
from weft.solver.period.structure.device_order import both_ways
from weft.solver.period.structure.lanes import Lanes
from weft.solver.period.technique import Task
from weft.solver.problem import Dependency, Device, Problem
from weft.solver.relations.min_dist import least_distances, least_open_period
from weft.solver.ticks import TickProblem


def lanes_of(problem: Problem, held: int = 1) -> LaneWeights | None:
    instance = TickProblem.of(problem)
    lags = least_distances(instance, sum(instance.durations) + sum(arc.lag for arc in instance.arcs))
    assert lags is not None
    lanes = Lanes.of(instance, both_ways(instance)[0])
    return None if lanes is None else LaneWeights.of(lanes, held, lags)


def names(problem: Problem, row: tuple[int, ...]) -> list[str]:
    return [problem.blocks[i].name for i in row]


def test_lanes_of_a_v_of_two_chunks() -> None:
    """Device d has the stages d and 7 - d; a wait anywhere holds one activation of device 0 longer, one at the
    turn on device 0 both."""
    problem = pipeline(v(4), memory=8)
    lanes = lanes_of(problem)
    assert lanes is not None
    assert [set(names(problem, row)) for row in lanes.rows] == [
        {f"f{d}", f"f{7 - d}", f"b{d}", f"b{7 - d}"} for d in range(4)]
    assert [names(problem, row) for row in lanes.rows][3] == [
        name.replace("0", "3").replace("7", "4") for name in names(problem, lanes.rows[0])]
    forth = {name for name, along in zip(names(problem, lanes.rows[0]), lanes.along, strict=True) if along}
    assert forth == {"f0", "b7"}
    assert set(lanes.weights) == {(1, 1, 1, 1)}
    assert [[static.weight for static in row] for row in lanes.static] == [[2], [], [], [1, 1]]


def test_room_is_what_memory_and_durations_leave() -> None:
    """Stages of 1 + 2 on 4 devices: a round trip of 12 that holds an activation, one that needs 4, at memory 5."""
    lanes = lanes_of(pipeline(chain(4), memory=5))
    assert lanes is not None
    assert lanes.room(3) == 5 * 3 - 12 and lanes.room(2) == -2


@pytest.mark.parametrize(("problem", "count"), [
    (pipeline(chain(3), memory=3), 2),
    (pipeline(chain(3), split=(1, 1), memory=3), 2),  # weight gradients are ends, not lanes
    (pipeline(loop(3), memory=9), 4),
    (pipeline(waves(3, 2), memory=9), None),  # eight lanes
    (pipeline(chain(3)), None),  # no limit
    (pipeline(chain(3), backward=None, memory=3), None),  # nothing is held
    (pipeline([0, 1, 0], memory=9), None),  # not as many on each device
    (pipeline([0, 1, 2, 0, 2, 1], memory=9), None),  # not always to the next device
], ids=str)
def test_what_are_lanes(problem: Problem, count: int | None) -> None:
    lanes = lanes_of(problem)
    assert (None if lanes is None else len(lanes.along)) == count


def test_the_longest_of_two_dependencies_counts() -> None:
    problem = pipeline(chain(3), memory=3)
    block = problem.blocks[1]
    waits = (Dependency("f0", 2), Dependency("f0", 1))
    twice = replace(problem, blocks=(problem.blocks[0], replace(block, after=waits), *problem.blocks[2:]))
    lanes = lanes_of(twice)
    assert lanes is not None
    assert lanes.lengths[0][lanes.along.index(True)] == 3
    assert lanes.room(9) == 3 * 9 - (3 * 3 + 2)


@settings(max_examples=examples(16), deadline=None)
@given(st.integers(0, 999), st.integers(1, 2), st.sampled_from([8, 13, 32]))
def test_no_more_is_refuted_than_by_trying_everything(seed: int, memory: int, cells: int) -> None:
    problem = uneven(pipeline(chain(2), memory=memory), random.Random(seed), most=3, lags=1)
    optimum = least_whole_period(problem, 14)
    assert optimum is not None
    for held in (1, 2):
        lanes = lanes_of(problem, held)
        assert lanes is not None
        assert LanePatterns(lanes, optimum, cells).share() <= 1


@settings(max_examples=examples(24), deadline=None)
@given(st.sampled_from([chain(6), v(3), v(5), loop(3), loop(5)]), st.booleans(), st.integers(0, 999),
       st.sampled_from([1.0, 1.3, 2.0]), st.integers(0, 3), st.sampled_from([9, 32, 48]))
def test_no_period_that_works_is_refuted(devices: list[int], split: bool, seed: int, cap: float, lags: int,
                                         cells: int) -> None:
    chance = random.Random(seed)
    least = len(devices) // len(set(devices))
    memory = max(least, round(cap * least * len(set(devices)) / 2))
    problem = uneven(pipeline(devices, split=(1, 1) if split else None, memory=memory), chance, lags=lags)
    instance = TickProblem.of(problem)
    found = find_period(instance, one_at_a_time(instance), Budget(), deterministic=0.5).best
    for held in (1, 2, 4):
        lanes = lanes_of(problem, held)
        assert lanes is not None
        assert LanePatterns(lanes, ceil(found.period), cells).share() <= 1


def test_amounts_that_differ_and_are_large() -> None:
    """Bytes as they come from profiles, workspace included: nothing overflows, nothing that works is refuted."""
    chance = random.Random(3)
    problem = uneven(pipeline(v(4), memory=8), chance, most=900)
    amounts = {f"f{s}": chance.randint(10**9, 3 * 10**9) for s in range(8)}
    problem = replace(
        problem, devices=tuple(Device(device.name, 16 * 10**9) for device in problem.devices),
        blocks=tuple(replace(block, memory=(amounts[block.name] if block.name[0] == "f"
                                            else -amounts["f" + block.name[1:]],),
                             workspace=(10**8 + 1,)) for block in problem.blocks))
    instance = TickProblem.of(problem)
    found = find_period(instance, one_at_a_time(instance), Budget(), deterministic=2.0).best
    for held in (1, 4):
        lanes = lanes_of(problem, held)
        assert lanes is not None and lanes.scale < Fraction(1, 10**6)
        shares = [LanePatterns(lanes, ceil(found.period * share), 48).share()
                  for share in (Fraction(1), Fraction(3, 2), Fraction(1, 2))]
        assert shares[1] <= shares[0] <= 1 and shares[2] == inf


def test_waits_refute_what_least_distances_do_not() -> None:
    """A V of two chunks with memory for four activations on each of eight devices."""
    instance = TickProblem.of(tight_v())
    start = one_at_a_time(instance)
    search = find_period(instance, start, Budget(), deterministic=30.0)
    assert search.proven
    lanes = LaneWaits.of(Bracket(instance, Fraction(instance.heaviest_load), start), Task(instance.heaviest_load))
    assert lanes is not None
    time = Slice(Budget(), inf, inf)
    by_distances = least_open_period(instance, ceil(start.period)) - 1
    by_lanes = max(period for period in range(by_distances, ceil(search.best.period), 5)
                   if period == by_distances or lanes.refutes([period], time))
    assert by_lanes > 1.1 * by_distances
    assert lanes.near and not lanes.refutes([ceil(search.best.period)], time)
