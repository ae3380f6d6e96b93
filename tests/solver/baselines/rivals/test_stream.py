"""Streams over lanes: never above a plain streamer, and more memory makes none longer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, permutations

import pytest

from tests.oracles.generated import drawn
from tests.oracles.streams import drawn_stream, plain_streamer
from tests.support import laned_pipeline, slow, valid
from weft.solver import Block, BlockKind, Dependency, Device, Problem, baseline, validate
from weft.solver.baselines.rivals.stream import block_places, demanded, tour
from weft.solver.ticks import TickProblem

SLOTS = range(2, 9)


@pytest.mark.parametrize(("grid", "seed"), [
    (grid, seed) if grid < 7 else slow(grid, seed) for grid in (2, 3, 5, 7) for seed in range(3)])
def test_streams_are_no_longer_than_a_plain_streamers_or_than_with_less_memory(grid: int, seed: int) -> None:
    found = []
    for slots in SLOTS:
        problem = drawn_stream(grid, slots, seed)
        schedule = valid(baseline("stream", problem, 1))
        assert schedule.peak_memory[0] <= slots
        assert schedule.makespan <= plain_streamer(problem)
        found.append(schedule.makespan)
    assert all(more <= less for less, more in pairwise(found))


def test_the_order_of_the_file_does_not_matter() -> None:
    problem = drawn_stream(5, 3, 0)
    by_kind = replace(problem, blocks=tuple(sorted(problem.blocks, key=lambda block: "LCS".index(block.name[0]))))
    schedule = valid(baseline("stream", by_kind, 1))
    assert schedule.makespan <= plain_streamer(problem)


@pytest.mark.parametrize("memory", [2, 3, 4])
@pytest.mark.parametrize("ranks", [2, 4])
def test_pipelines_with_copies_run_without_waits_for_memory(ranks: int, memory: int) -> None:
    """Several micro-batches on several GPUs: the first copy and all copies of rank 0 are the bound."""
    problem = laned_pipeline(ranks, memory, copy=30)
    schedule = valid(baseline("stream", problem, 20))
    assert schedule.makespan == {2: 1336, 4: 1488}[ranks]  # 20 x 60 of work, and the way there and back


def several_gpus(problem: Problem, gpus: int) -> Problem:
    """``gpus`` copies of it side by side."""
    count = len(problem.devices)
    return replace(problem, devices=tuple(
        replace(device, name=f"{device.name} {g}", lane_of=device.lane_of and f"{device.lane_of} {g}")
        for g in range(gpus) for device in problem.devices), blocks=tuple(
        replace(block, name=f"{block.name} {g}", devices=tuple(d + g * count for d in block.devices),
                after=tuple(replace(item, block=f"{item.block} {g}") for item in block.after))
        for g in range(gpus) for block in problem.blocks))


def test_streams_on_several_gpus_are_as_long_as_on_one() -> None:
    problem = drawn_stream(3, 3, 1)
    schedule = valid(baseline("stream", several_gpus(problem, 3), 1))
    assert schedule.makespan == baseline("stream", problem, 1).makespan


def test_several_micro_batches_overlap() -> None:
    problem = drawn_stream(3, 4, 0)
    one, six = (baseline("stream", problem, count) for count in (1, 6))
    validate(six)
    assert six.makespan < 6 * one.makespan


@pytest.mark.parametrize("number", range(40))
def test_all_ways_keep_to_what_blocks_wait_for(number: int) -> None:
    instance = TickProblem.of(drawn(number).problem)
    for places in block_places(instance):
        assert len(places) == len(instance.blocks)
        assert all(places[arc.source] < places[arc.target] for arc in instance.arcs if not arc.distance)


def test_loads_come_right_before_what_they_are_for() -> None:
    """However the file has them."""
    problem = drawn_stream(3, 2, 0)
    by_kind = tuple(sorted(problem.blocks, key=lambda block: "LCS".index(block.name[0])))
    instance = TickProblem.of(Problem("by kind", problem.devices, by_kind))
    stores = range(len(by_kind) - 3, len(by_kind))
    found = [by_kind[i].name for i in demanded(instance, [()] * len(by_kind), stores)]
    assert found == [block.name for block in problem.blocks]


def test_the_key_orders_what_one_block_waits_for() -> None:
    names = ("a", "b", "c")
    blocks = (*(Block(name, BlockKind.OTHER, (0,), 1) for name in names),
              Block("end", BlockKind.OTHER, (0,), 1, after=tuple(map(Dependency, names))))
    instance = TickProblem.of(Problem("p", (Device("gpu"),), blocks))
    assert demanded(instance, [(3,), (1,), (2,), (0,)], [3]) == [1, 2, 0, 3]


def cost(order: Sequence[int], loads: Sequence[int], computations: Sequence[int]) -> int:
    return (loads[order[0]] + sum(max(computations[one], loads[other]) for one, other in pairwise(order))
            + computations[order[-1]])


@pytest.mark.parametrize("count", range(1, 7))
def test_no_order_costs_less(count: int) -> None:
    draw = random.Random(count)
    for _ in range(30):
        loads, computations = ([draw.randint(0, 9) for _ in range(count)] for _ in range(2))
        found = tour(loads, computations)
        assert cost(found, loads, computations) == min(
            cost(order, loads, computations) for order in permutations(range(count))), (loads, computations)
