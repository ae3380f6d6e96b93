"""Rows of several chunks a group: their cuts against all there are, and what is searched of them."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from tests.models.tensor_parallel.bound.test_any_placement import homes
from tests.models.tensor_parallel.test_shapes import spec_of
from tests.support.builders import valid
from weft.models.candidates.gpu_costs import family_costs
from weft.models.layers.costs import LayerCost
from weft.models.tensor_parallel.bound.group_cover import LayerTerms
from weft.models.tensor_parallel.group_rows import Chunks, best_rows, cut_row, divisions, group_of_stage
from weft.models.tensor_parallel.group_split import StageTables
from weft.models.tensor_parallel.shapes import shape_candidates
from weft.models.tensor_parallel.space import space_of
from weft.solver.baselines import baseline

GPT = "{family: gpt, layers: 14, hidden: 512, heads: 8, vocabulary: 8192, sequence: 512}"


def layer(load: int, kept: int) -> LayerCost:
    """A layer of ``load`` nanoseconds that keeps so much."""
    return LayerCost("", load * 1e-9, 0.0, None, None, 1, kept, 0, 0)


@pytest.mark.parametrize("kind, groups, chunks", [("v", 2, 2), ("loop", 2, 2), ("loop", 2, 3), ("loop", 3, 2)])
def test_cuts_by_moves_come_close_to_the_best_of_all(kind: Chunks, groups: int, chunks: int) -> None:
    """Equal layers between a light and a heavy one, groups of two speeds, memory from tight to ample: a cut is found
    wherever there is one, nearly, and is at most an eighth above the best."""
    draw, where = random.Random(1), group_of_stage(kind, groups, chunks)
    possible = found_none = 0
    for _ in range(25):
        count = draw.randint(len(where), len(where) + 6)
        loads = [draw.randint(1, 5), *[12] * (count - 2), draw.randint(6, 20)]
        keeps = [0, *[3] * (count - 2), 5]
        fast, slow = (StageTables.of([layer(load // speed, kept) for load, kept in zip(loads, keeps, strict=True)], 2,
                                     "full") for speed in (2, 1))
        tables = [fast if group else slow for group in where]
        held = [draw.randint(1, len(where) - s) for s in range(len(where))]
        room = draw.randint(10, 60) * count // 4
        best = None
        for inner in itertools.combinations(range(1, count), len(where) - 1):
            runs = list(itertools.pairwise((0, *inner, count)))
            needs, load = [0.0] * groups, [0.0] * groups
            for group, table, amount, run in zip(where, tables, held, runs, strict=True):
                needs[group] += table.static[run] + amount * table.each[run]
                load[group] += table.load[run]
            if max(needs) <= room:
                best = max(load) if best is None else min(best, max(load))
        made = cut_row(tables, where, held, room)
        assert made is None or (best is not None and best <= made[1] <= 1.125 * best)
        possible += best is not None
        found_none += best is not None and made is None
    assert possible > 10 and found_none <= possible / 10


@pytest.mark.parametrize("run", ["training: {micro_batches: 4}", "inference: {micro_batches: 4}"])
def test_rows_of_several_chunks_are_placements_that_run(run: str) -> None:
    """Where few micro-batches make the ramp long; every layer once, each chunk on its group, valid schedules."""
    spec = spec_of(GPT, gpus=4, run=run)
    space = space_of(spec, family_costs(spec))
    assert space is not None
    assert best_rows(space, ("v", "loop"), space.modes(("full",))[0])
    found, _ = shape_candidates(space, ("groups",), ("full", "split"), ("v", "loop"))
    made = [candidate for candidate in found if candidate.chunks is not None]
    assert made
    for candidate in made:
        groups = list(dict.fromkeys(part.gpus for part in candidate.parts))
        chunks = len(candidate.parts) // len(groups)
        assert [part.gpus for part in candidate.parts] == [
            groups[group] for group in group_of_stage(candidate.chunks or "v", len(groups), chunks)]
        assert f"of {chunks} chunks" in candidate.title
        assert list(itertools.chain(*(part.layers for part in candidate.parts))) == list(range(len(space.layers)))
        schedule = valid(baseline("greedy", candidate.problem, 4))
        assert schedule.makespan >= space.least_makespan(4) * (1 - 1e-9)


def test_a_division_of_two_sizes_is_the_fastest_there_is() -> None:
    """The least load of the busiest group over all ways to give layers to groups of both sizes; larger groups first."""
    draw = random.Random(4)
    for _ in range(25):
        count = draw.randint(3, 5)
        whole = [draw.choice((12, 20, 33)) * 1000 for _ in range(count)]
        load = np.array([[one, one * 6 // 10, one // 4] for one in whole])
        zero = np.zeros_like(load)
        terms = LayerTerms((1, 2, 4), load, zero, zero, zero, zero, is_row=False, is_split=False)
        found = divisions(terms, 4, 1, float("inf"))
        best = min(max(sum(int(load[i, home_degree(home)]) for i, home in enumerate(placed) if gpu in home)
                       for gpu in range(4))
                   for placed in homes(count, 4, (1, 2))
                   if [sum(len(home) == size for home in set(placed)) for size in (1, 2)] <= [2, 1]
                   and sum(len(home) == 2 for home in set(placed)) <= 1)
        assert all(sum(division) == 4 and list(division) == sorted(division, reverse=True) for division in found)
        assert (2, 1, 1) in found
        assert not divisions(terms, 4, 1, best * 0.999)
        assert divisions(terms, 4, 1, best) == [(2, 1, 1)]


def home_degree(home: tuple[int, ...]) -> int:
    """The column of a group's size."""
    return len(home) - 1
