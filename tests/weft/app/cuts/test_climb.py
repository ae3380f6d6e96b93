"""The climb over cuts and orders together."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from tests.support.cut_specs import MODES, Mode, drawn_spec
from weft.app.cuts.climb import MOVES, Climb, polished
from weft.app.cuts.search import CutSearch
from weft.app.cuts.tries import tried
from weft.models.cuts.numbers import orders_of_blocks, orders_of_stages
from weft.models.cuts.spaces import cut_spaces
from weft.solver.cpsat.budget import Budget
from weft.solver.judge.validate import validate
from weft.solver.pipeline import Pipeline


def begun(mode: Mode, seed: int = 0) -> Climb:
    """A climb of a small spec, from the first looks at its cuts."""
    spec = drawn_spec(1, mode, count=8, micro_batches=4, shapes=["chain", "v", "loop"], chunks=2)
    cuts = CutSearch(cut_spaces(spec, 4), 4, Budget(600.0, deterministic=2.0, seed=seed))
    cuts.open(100.0)
    climb = Climb(cuts)
    tried(climb, beside=False)
    return climb


@pytest.mark.parametrize("mode", MODES)
def test_it_only_gets_better_and_keeps_judged_schedules(mode: Mode) -> None:
    climb = begun(mode)
    before = climb.kept[0].makespan
    climb.run(climb.cuts.budget.slice(0.3))
    assert climb.kept[0].makespan <= before
    assert [kept.makespan for kept in climb.kept] == sorted(kept.makespan for kept in climb.kept)
    for kept in climb.kept:
        assert kept.start is not None
        validate(kept.start)


def test_of_one_cut_the_best_is_kept_and_of_one_makespan_few() -> None:
    climb = begun("split")
    climb.run(climb.cuts.budget.slice(0.3))
    cuts = [(id(kept.space), kept.borders) for kept in climb.kept]
    assert len(set(cuts)) == len(cuts) <= 12
    assert max(Counter(round(kept.makespan, 12) for kept in climb.kept).values()) <= 2
    known = list(climb.kept)
    climb.keep(climb.kept[-1])
    assert climb.kept == known


@pytest.mark.slow
def test_it_repeats() -> None:
    climbs = [begun("split", seed=3) for _ in range(2)]
    for climb in climbs:
        climb.run(climb.cuts.budget.slice(0.2))
    first, second = ([(kept.borders, kept.makespan) for kept in climb.kept] for climb in climbs)
    assert first == second


def test_neighbours_are_one_layer_s_move_away_and_their_bounds_hold() -> None:
    climb = begun("split")
    parent = climb.kept[0]
    assert parent.start is not None
    pipeline, orders = Pipeline.of(parent.placement.problem), parent.start.orders
    found = parent.space.neighbours(parent.borders, pipeline, orders)
    assert found and len({borders for borders, _ in found}) == len(found)
    for borders, bound in found[:6]:
        assert all(a < b for a, b in pairwise(borders))
        moved = [b - a for a, b in zip(parent.borders, borders, strict=True)]
        assert {*moved} <= {0, 1} or {*moved} <= {0, -1}
        there = Pipeline.of(parent.space.candidate(borders).problem)
        carried = orders_of_blocks(there, orders_of_stages(pipeline, orders))
        own = polished(climb.cuts, parent.space, borders, carried, MOVES // 10)
        assert own is None or own.makespan * 1e9 >= bound * (1 - 1e-9)
