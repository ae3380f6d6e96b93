"""The search over building blocks, and what makes long schedules of short ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.builders import chain, loop, pipeline, v, valid
from weft.solver import BASELINES, NotApplicable, Schedule, baseline, time_orders, validate
from weft.solver.baselines.lib.extend import extended
from weft.solver.baselines.one_f_one_b_plus import around_blocks
from weft.solver.problem import Block, BlockKind, Dependency, Number, Problem


@pytest.mark.parametrize(("p", "m", "cap", "makespan"), [
    (4, 8, 4, 59), (4, 8, 5, 56), (4, 8, 6, 53), (4, 8, 8, 51), (8, 16, 8, 119), (8, 16, 9, 116), (8, 16, 10, 113),
    (8, 16, 16, 103), (16, 32, 12, 251), (16, 32, 14, 245)])
def test_as_good_as_the_best_known_on_uniform_vs(p: int, m: int, cap: int, makespan: int) -> None:
    schedule = valid(baseline("v-block", pipeline(v(p), split=(1, 1), memory=cap), m))
    assert schedule.makespan <= makespan


@pytest.mark.parametrize(("problem", "rivals"), [
    (pipeline(chain(4), memory=4), ("1f1b",)),
    (pipeline(chain(4), split=(1, 1), memory=4), ("1f1b", "zb-h1")),
    (pipeline(loop(4), memory=11), ("interleaved",)),
    (pipeline(v(4), split=(1, 1), memory=4), ("v-min",)),
    (pipeline(v(4), forward=3, split=(2, 2), memory=6), ("v-min", "v-half")),
    (pipeline(v(4), forward=5, split=(4, 3), memory=6), ("v-min", "v-half")),
    (pipeline(v(4), forward=2, split=(3, 1), memory=9, lag=0.5), ("v-min", "v-half", "zb-v", "dualpipe-v"))])
def test_no_worse_than_the_published_schedules_that_fit(problem: Problem, rivals: tuple[str, ...]) -> None:
    found = valid(baseline("v-block", problem, 16))
    for name in rivals:
        rival = valid(baseline(name, problem, 16))
        assert found.makespan <= rival.makespan, name


@pytest.mark.parametrize("stages", [chain(4), v(4), loop(4), loop(3, 3)])
@pytest.mark.parametrize("split", [None, (1, 1)])
def test_any_cap_down_to_one_micro_batch_at_a_time(stages: list[int], split: tuple[Number, Number] | None) -> None:
    least = len(stages) // len(set(stages))
    previous = float("inf")
    for cap in (least, least + 1, 2 * least + 1, 8 * least):
        schedule = valid(baseline("v-block", pipeline(stages, split=split, memory=cap), 10))
        assert schedule.makespan <= previous
        previous = schedule.makespan
    with pytest.raises(NotApplicable):
        baseline("v-block", pipeline(stages, split=split, memory=least - 1), 10)


def test_unequal_stages_and_memory() -> None:
    even = pipeline(v(4), split=(2, 2), forward=2, memory=7)
    blocks = [replace(block, duration=block.duration + 1 + i % 3 / 2) for i, block in enumerate(even.blocks)]
    problem = replace(even, blocks=tuple(blocks), devices=(*even.devices[:3], replace(even.devices[3], memory=4)))
    schedule = valid(baseline("v-block", problem, 20))
    assert schedule.makespan < baseline("greedy", problem, 20).makespan


def test_an_input_gradient_that_takes_memory() -> None:
    even = pipeline(v(3), split=(1, 1), memory=9)
    blocks = [replace(block, memory=(1,)) if block.name.startswith("b") else
              replace(block, memory=(-2,)) if block.name.startswith("w") else block for block in even.blocks]
    validate(baseline("v-block", replace(even, blocks=tuple(blocks)), 12))


@pytest.mark.parametrize(("problem", "many"), [
    (pipeline(v(4), split=(1, 1), memory=6), 301), (pipeline(chain(4), memory=4), 500),
    (pipeline(v(3), forward=3, split=(2, 2), memory=4), 200), (pipeline(loop(4), memory=9), 333)])
def test_many_micro_batches_keep_the_pace(problem: Problem, many: int) -> None:
    few, more = baseline("v-block", problem, 64), baseline("v-block", problem, many)
    validate(more)
    work = max(sum(problem.blocks[i].duration for i in row) for row in problem.blocks_on)
    assert more.makespan / many <= few.makespan / 64
    assert more.makespan >= work * many


def test_memory_without_a_limit_is_not_wasted() -> None:
    """ZB-V's makespan at F = I = W in little more than ZB-V's memory."""
    schedule = baseline("v-block", pipeline(v(8), split=(1, 1)), 32)
    assert schedule.makespan == baseline("zb-v", pipeline(v(8), split=(1, 1)), 32).makespan
    assert max(schedule.peak_memory) <= 1.1 * 16


def test_extended_repeats_what_repeats() -> None:
    """1F1B made for few micro-batches and repeated is 1F1B for many; made for all where nothing repeats."""
    problem = pipeline(chain(4))
    for name in ("1f1b", "gpipe"):
        asked: list[int] = []

        def make(n: int, name: str = name, asked: list[int] = asked) -> list[list[tuple[int, int]]]:
            asked.append(n)
            return [list(row) for row in BASELINES[name].orders(problem, n)]

        rows = extended(problem, 203, make)
        assert rows is not None
        assert max(o.end for o in time_orders(problem, 203, rows)) == baseline(name, problem, 203).makespan
        assert asked == ([64] if name == "1f1b" else [64, 203])


@pytest.mark.parametrize("devices", [loop(4), v(4)])
@pytest.mark.parametrize("held", [0, 4])
def test_blocks_on_all_devices_are_put_between_building_blocks(devices: list[int], held: int) -> None:
    """An embedding's forward before the first stage and its backward after it, each on all devices."""
    inner = pipeline(devices, split=(1, 1), memory=100)
    everywhere = tuple(range(4))
    into = Block("F in", BlockKind.FORWARD, everywhere, 1, memory=(2,))
    blocks = [replace(block, after=(Dependency("F in"),)) if block.name == "f0" else block for block in inner.blocks]
    out = Block("B in", BlockKind.BACKWARD, everywhere, 1, memory=(-2,), after=(Dependency("b0"),))
    problem = Problem("m", inner.devices, (into, *blocks, out))
    rows = around_blocks(problem, 8, held=held)
    schedule = valid(Schedule(problem, 8, time_orders(problem, 8, rows), 0.0))
    alone = baseline("v-block", inner, 8).makespan
    assert alone <= schedule.makespan <= alone + 8 * 2 + 6


def test_without_room_or_such_blocks_nothing_is_put_together() -> None:
    with pytest.raises(NotApplicable, match="several devices"):
        around_blocks(pipeline(v(2), split=(1, 1)), 4, held=4)
    inner = pipeline(v(2), split=(1, 1), memory=8)
    into = Block("F in", BlockKind.FORWARD, (0, 1), 1, memory=(2,))
    with pytest.raises(NotApplicable, match="no room"):
        around_blocks(Problem("m", inner.devices, (into, *inner.blocks)), 4, held=4)
