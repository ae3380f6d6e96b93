"""The cuts that a makespan does not rule out: as trying them one by one says."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.oracles.whole import TooLarge, least_makespan
from tests.support.cut_specs import MODES, Mode, all_cuts, problems_of, space_of
from tests.support.examples import slow
from weft.models.cuts.enumeration import CutTables, Ground, ListedCuts, ShapeLayout, enumerated, layouts
from weft.models.cuts.space import CutSpace

EVER = 1 << 50
LAYOUTS = [("chain", 1, 7), ("v", 2, 7), ("loop", 2, 7), ("wave", 3, 8)]


def listed(cuts: ListedCuts) -> dict[tuple[int, ...], int]:
    found = {tuple(map(int, row)): int(bound) for row, bound in zip(cuts.borders, cuts.bounds, strict=True)}
    assert len(found) == len(cuts)
    return found


def room_for_one(space: CutSpace, cut: tuple[int, ...]) -> bool:
    """Whether every GPU holds its stages' weights and what they keep of one micro-batch."""
    held = [0] * space.ground.layout.gpus
    for device, (first, last) in zip(space.ground.layout.devices, pairwise(cut), strict=True):
        table = space.ground.tables[space.ground.kind[device]]
        held[device] += int(table.static[first, last]) + int(table.change[0][first, last])
    return all(amount <= room for amount, room in zip(held, space.ground.capacity, strict=True))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("shape", "chunks", "count"), LAYOUTS)
def test_all_cuts_below_a_limit_are_listed_and_no_other(mode: Mode, shape: str, chunks: int, count: int) -> None:
    some_left = False
    for number in range(0, 8, 2):
        space = space_of(number, mode, shape, chunks, count=count, unequal=number > 2)
        ground, n = space.ground, space.micro_batches
        whole = enumerated(ground, n, EVER)
        every = listed(whole)
        assert set(every) == {cut for cut in all_cuts(space) if room_for_one(space, cut)} and whole.left_out is None
        for cut, bound in every.items():
            work = [0] * ground.layout.gpus
            for device, (first, last) in zip(ground.layout.devices, pairwise(cut), strict=True):
                work[device] += n * int(ground.tables[ground.kind[device]].work[first, last])
            assert bound >= max(work)
        for below in sorted(set(every.values()))[:40:5]:
            expected = {cut: bound for cut, bound in every.items() if bound < below}
            assert listed(enumerated(ground, n, below)) == expected
            some_left = some_left or 0 < len(expected) < len(every)
    assert some_left


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("shape", "chunks", "count"), [
    ("chain", 1, 5), slow("v", 2, 5), slow("loop", 2, 5), ("wave", 3, 6)])
def test_no_bound_is_above_the_optimum(mode: Mode, shape: str, chunks: int, count: int) -> None:
    met = 0
    for number in range(5):
        space = space_of(number, mode, shape, chunks, count=count, micro_batches=2 if chunks < 3 else 1,
                         unequal=number > 2)
        every = listed(enumerated(space.ground, space.micro_batches, EVER))
        for cut, problem in problems_of(space).items():
            try:
                least = least_makespan(problem, space.micro_batches, 1_500)
            except TooLarge:
                continue
            if least is not None:
                met += 1
                assert every[cut] <= least * 10**9 and space.floor <= least * 10**9
    assert met >= 3


@pytest.mark.parametrize(("shape", "chunks", "count"), LAYOUTS)
def test_what_there_is_no_room_for_is_bounded(shape: str, chunks: int, count: int) -> None:
    left_out = 0
    for number in range(8):
        space = space_of(number, "full", shape, chunks, count=count, unequal=number > 3)
        every = listed(enumerated(space.ground, space.micro_batches, EVER))
        for most in (1, 3, 10, 1000):
            some = enumerated(space.ground, space.micro_batches, EVER, most)
            found = listed(some)
            assert len(found) <= most and found.items() <= every.items()
            if some.left_out is None:
                assert found == every
                continue
            left_out += 1
            assert all(bound >= some.left_out for cut, bound in every.items() if cut not in found)
    assert left_out >= 8


def test_only_cuts_with_a_stage_that_is_needed() -> None:
    for number in range(4):
        space = space_of(number, "split", "v", 2, count=7)
        every = listed(enumerated(space.ground, space.micro_batches, EVER))
        for wanted in ([(0, 1)], [(2, 4), (3, 7)], [(6, 7)], []):
            needed = np.zeros((8, 8), dtype=np.bool_)
            needed[tuple(zip(*wanted, strict=True)) if wanted else ([], [])] = True
            found = listed(enumerated(replace(space.ground, needed=needed), space.micro_batches, EVER))
            assert found == {cut: bound for cut, bound in every.items() if set(wanted) & set(pairwise(cut))}


def test_layers_that_are_left_may_all_be_where_they_are_quickest() -> None:
    """Behind the first layer there are two that are quick on one kind of GPU and two that are on the other: on either
    kind alone they take 20, together 4."""
    none, tables = np.zeros((6, 6), dtype=np.int64), []
    first, last = np.meshgrid(np.arange(6), np.arange(6), indexing="ij")
    for row in ((1, 1, 1, 9, 9), (1, 9, 9, 1, 1)):
        passed = np.cumsum((0, *row))
        times = np.where(last > first, passed[last] - passed[first], 0)
        tables.append(CutTables((times, none, none), (none, none, none), (none, none, none), none))
    lags = np.zeros((2, 6), dtype=np.int64)
    ground = Ground(ShapeLayout("chain", 1, 3), tuple(tables), (0, 0, 1), (1, 1, 1), lags, ends_whole=False)
    space = CutSpace(ground, "none", 1, candidate=lambda _: pytest.fail("nobody asks"))
    assert space.floor <= 2
    assert (0, 1, 3, 5) in listed(enumerated(ground, 1, 6))


@pytest.mark.parametrize(("shapes", "gpus", "chunks", "layers", "found"), [
    (("chain", "v", "loop", "wave"), 2, 3, 9, ["chain 1", "v 2", "loop 2", "wave 3", "loop 3"]),
    (("chain", "v", "loop", "wave"), 2, 3, 5, ["chain 1", "v 2", "loop 2"]),
    (("chain", "v", "loop", "wave"), 2, 1, 9, ["chain 1"]),
    (("v", "groups"), 2, 4, 9, ["v 2"]),
    (("wave",), 2, 4, 9, ["wave 3", "wave 4"]),
    (("wave",), 2, 2, 9, []),
    (("chain", "loop"), 1, 3, 9, ["chain 1"]),
    (("chain", "loop"), 4, 3, 3, []),
])
def test_those_that_the_layers_can_fill(shapes: tuple[str, ...], gpus: int, chunks: int, layers: int,
                                        found: list[str]) -> None:
    assert [f"{layout.shape} {layout.chunks}" for layout in layouts(shapes, gpus, chunks, layers)] == found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("number", [0, 1, 4])
def test_durations_and_memory_are_those_of_the_blocks(mode: Mode, number: int) -> None:
    space = space_of(number, mode, gpus=3, unequal=True)
    letters = {"full": ("F", "B", ""), "split": ("F", "IB", "W"), "none": ("F", "", "")}[mode]
    kinds = set()
    stages = {(s, *pair): problem for cut, problem in problems_of(space).items()
              for s, pair in enumerate(pairwise(cut))}
    for (s, first, last), problem in stages.items():
        table = space.ground.tables[space.ground.kind[space.ground.layout.devices[s]]]
        for which, named in enumerate(letters):
            block = next((block for block in problem.blocks
                          if block.name[0] in named and block.name[1:] == str(s)), None)
            numbers = [int(table.durations[which][first, last]), int(table.take[which][first, last]),
                       int(table.change[which][first, last])]
            kinds.add(block.name[0] if block else "")
            if block is None:
                assert numbers == [0, 0, 0]
            else:
                [memory], [workspace] = block.memory, block.workspace
                assert numbers == [round(block.duration * 1e9), max(memory, 0) + workspace, memory]
        assert (table.work == sum(table.durations)).all() and (table.kept == table.change[0]).all()
    assert kinds == {"full": {"F", "B", ""}, "none": {"F", ""},
                     "split": {"F", "I", "W", *(["B", ""] if number == 1 else [""] if number else [])}}[mode]
    assert (np.tril(space.ground.tables[0].static) == 0).all()
