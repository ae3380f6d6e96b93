"""Cuts as decisions to climb over."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from tests.support.cut_specs import MODES, Mode, drawn_spec
from weft.app.cuts.search import Cut, CutSearch
from weft.app.cuts.tries import tried
from weft.models.cuts.spaces import cut_spaces
from weft.solver.cpsat.budget import Budget
from weft.solver.judge.validate import validate
from weft.solver.orders.climb import Climb


def begun(mode: Mode, seed: int = 0) -> Climb[Cut]:
    """A climb of a small spec, from the first looks at its cuts."""
    spec = drawn_spec(1, mode, count=8, micro_batches=4, shapes=["chain", "v", "loop"], chunks=2)
    cuts = CutSearch(cut_spaces(spec, 4), 4, Budget(600.0, deterministic=2.0, seed=seed))
    cuts.open(100.0)
    climb: Climb[Cut] = Climb(cuts.budget)
    tried(cuts, climb, beside=False)
    return climb


@pytest.mark.parametrize("mode", MODES)
def test_it_only_gets_better_and_keeps_judged_schedules(mode: Mode) -> None:
    climb = begun(mode)
    before = climb.kept[0].makespan
    climb.run(climb.budget.slice(0.3))
    assert climb.kept[0].makespan <= before
    assert [kept.makespan for kept in climb.kept] == sorted(kept.makespan for kept in climb.kept)
    for kept in climb.kept:
        assert kept.schedule.problem == kept.decision.problem
        validate(kept.schedule)


def test_of_one_cut_the_best_is_kept_and_of_one_makespan_few() -> None:
    climb = begun("split")
    climb.run(climb.budget.slice(0.3))
    cuts = [kept.decision.key for kept in climb.kept]
    assert len(set(cuts)) == len(cuts) <= 12
    assert max(Counter(round(kept.makespan, 12) for kept in climb.kept).values()) <= 2
    known = list(climb.kept)
    climb.keep(climb.kept[-1])
    assert climb.kept == known


@pytest.mark.slow
def test_it_repeats() -> None:
    climbs = [begun("split", seed=3) for _ in range(2)]
    for climb in climbs:
        climb.run(climb.budget.slice(0.2))
    first, second = ([(kept.decision.borders, kept.makespan) for kept in climb.kept] for climb in climbs)
    assert first == second


def test_neighbours_are_one_layer_s_move_away_and_their_bounds_hold() -> None:
    climb = begun("split")
    parent, schedule = climb.kept[0].decision, climb.kept[0].schedule
    found = parent.neighbours(schedule)
    assert found and len({cut.key for cut in found}) == len(found)
    for cut in found[:6]:
        assert cut.group == parent.group and all(a < b for a, b in pairwise(cut.borders))
        moved = [b - a for a, b in zip(parent.borders, cut.borders, strict=True)]
        assert {*moved} <= {0, 1} or {*moved} <= {0, -1}
        own = climb.ordered(cut, cut.carried(parent, schedule), climb.budget.slice())
        assert own is None or own.makespan >= cut.bound * (1 - 1e-9)
