"""All cuts with all orders in one search: as trying every cut says."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

import weft
from tests.oracles.whole import TooLarge, least_makespan
from tests.support.builders import valid
from tests.support.cut_specs import MODES, Mode, best_of_all_cuts, drawn_spec, spec_of
from weft.app.cuts.search import CutDecision, CutSearch, space_title
from weft.app.cuts.tries import tried
from weft.app.lib.case import case_of
from weft.app.solving.solve import solve_case
from weft.models.cuts.space import CutSpace
from weft.models.cuts.spaces import cut_spaces
from weft.solver import Budget, Infeasible, validate
from weft.solver.orders.climb import Climb

EXACT = 1 + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("shapes", "chunks", "count", "gpus", "micro_batches"), [
    (["chain"], 1, 6, 3, 3), (["v"], 2, 5, 2, 2), (["chain", "v", "loop"], 2, 5, 2, 2), (["wave"], 3, 6, 2, 1)])
def test_the_best_over_all_cuts_is_found_and_proven(mode: Mode, shapes: list[str], chunks: int, count: int, gpus: int,
                                                    micro_batches: int) -> None:
    solved = 0
    for number in (0, 3):
        spec = drawn_spec(number, mode, count=count, gpus=gpus, micro_batches=micro_batches, unequal=number > 0,
                          shapes=shapes, chunks=chunks)
        try:
            best = best_of_all_cuts(spec)
        except TooLarge:
            continue
        if best is None:
            with pytest.raises(Infeasible):
                weft.solve(spec, effort=4.0)
            continue
        schedule = valid(weft.solve(spec, effort=4.0))
        assert schedule.solver["bound_over_placements"] <= float(best) * EXACT
        assert float(best) / EXACT <= schedule.makespan <= float(best) * EXACT
        assert schedule.solver["bound_over_placements"] >= schedule.makespan / EXACT
        assert schedule.solver["covered"].startswith(f"every cut of the {count} layers ")
        solved += 1
    assert solved


def test_a_cut_that_no_placement_offers_is_found() -> None:
    """Placements are cut for the least largest load; under a long fill that of another cut is the shortest step."""
    gains = 0
    for number in range(8):
        spec = drawn_spec(number, "full", count=7, gpus=3, micro_batches=2, shapes=["chain"], chunks=1)
        try:
            offered = {tuple(map(len, placement.details["layers_of_stage"])) for placement in case_of(spec).placements}
            schedule = weft.solve(spec, effort=0.5)
        except Infeasible:
            continue
        cut = tuple(map(len, schedule.solver["layers_of_stage"]))
        gains += cut not in offered
        assert schedule.solver["alternatives"][0]["cut"] == cut
    assert gains >= 2


@pytest.mark.parametrize("mode", MODES)
def test_a_given_cut_is_the_only_one(mode: Mode) -> None:
    for shapes, cut in ((["chain"], [1, 5]), (["v"], [1, 2, 1, 2]), (["wave"], [1] * 6)):
        spec = drawn_spec(4, mode, count=6, micro_batches=2, shapes=shapes, cut=cut)
        spec = spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"memory": (60_000,)})})
        borders = (0, *(sum(cut[:s + 1]) for s in range(len(cut))))
        free = spec.model_copy(update={"placement": spec.placement.model_copy(update={"cut": None})})
        [space] = [space for space in cut_spaces(free, 2) if space.ground.layout.stages == len(cut)]
        try:
            least = least_makespan(space.candidate(borders).problem, 2, 3_000)
        except TooLarge:
            least = None
        schedule = valid(weft.solve(spec, effort=1.0))
        assert list(map(len, schedule.solver["layers_of_stage"])) == cut
        assert "every cut" not in schedule.solver["covered"]
        if least is not None:
            assert schedule.makespan == pytest.approx(float(least), rel=1e-9)


def test_a_look_at_all_cuts_leaves_the_bound_below_what_is_found() -> None:
    spec = drawn_spec(2, "split", count=7, shapes=["chain", "v"], chunks=2)
    spaces = cut_spaces(spec, 3)
    search = CutSearch(spaces, 3, Budget(60.0, deterministic=100.0))
    assert [space_title(space) for space in spaces] == ["1 stage a GPU, I+W", "V, 2 chunks, I+W"]
    floor = search.bound
    assert floor == min(space.floor for space in spaces) * 1e-9 and search.left
    best = weft.solve(spec, effort=4.0).makespan
    search.open(best * 1.1)
    assert floor <= search.bound <= best * EXACT
    cut = search.lowest(best * 1.1, search.budget.slice(10.0))
    assert cut is not None
    assert floor <= search.taken(cut[0]).bound == cut[0].bound <= best * 1.1
    search.narrow(0.0)
    assert not search.left and search.bound == float("inf")
    assert search.lowest(best, search.budget.slice(10.0)) is None


@pytest.mark.parametrize("mode", MODES)
def test_a_closer_look_proves_no_more_than_holds_and_finds_what_is_shorter(mode: Mode) -> None:
    refuted = 0
    for number in range(3):
        [space] = cut_spaces(drawn_spec(number, mode, count=5, shapes=["chain"], chunks=1), 3)
        search = CutSearch([space], 3, Budget(60.0))
        space.open(10**12)
        for borders in space.some(4):
            cut = CutDecision(search, space, borders)
            try:
                least = least_makespan(cut.problem, 3, 3_000)
            except TooLarge:
                continue
            if least is None:
                continue
            looked, schedule = search.look(cut, float(least))
            assert float(least) / EXACT <= looked.bound <= float(least) * EXACT and schedule is None
            looked, schedule = search.look(cut, float(least) + 1e-3)
            assert schedule is not None and schedule.makespan == pytest.approx(float(least), rel=1e-9)
            refuted += looked.bound <= float(least) * EXACT
    assert refuted >= 5


@pytest.mark.parametrize("number", range(3))
def test_the_bound_that_is_told_never_falls(number: int) -> None:
    """Nor does it when a cut gets a search of its own, which knows less of it."""
    bounds: list[float] = []
    case = case_of(drawn_spec(number, "split", count=8, shapes=["chain", "v", "loop"], chunks=2))
    solve_case(case, weft.SearchOptions(effort=0.5), lambda told: bounds.append(told.best.makespan_bound))
    assert bounds == sorted(bounds)


def test_a_stop_while_a_cut_is_taken_proves_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, lower = CutSpace.take, 0

    def stopped(space: CutSpace, borders: tuple[int, ...]) -> int:
        known = taken(space, borders)
        if borders not in offered:
            raise KeyboardInterrupt
        return known

    for number in range(8):
        spec = drawn_spec(number, "full", count=7, gpus=3, micro_batches=2, shapes=["chain"], chunks=1)
        try:
            best, case = weft.solve(spec, effort=2.0), case_of(spec)
        except Infeasible:
            continue
        offered = {CutSearch.borders_of(placement) for placement in case.placements}
        with monkeypatch.context() as patch:
            patch.setattr(CutSpace, "take", stopped)
            found = solve_case(case, weft.SearchOptions(effort=2.0), lambda _: None)
        assert found.solver["bound_over_placements"] <= best.makespan * EXACT
        lower += found.makespan > best.makespan * EXACT
    assert lower


def test_a_placement_s_borders_are_the_first_layers_of_its_stages() -> None:
    placement = case_of(drawn_spec(4, "full", count=6, gpus=3, shapes=["chain"], cut=[1, 3, 2])).placements[0]
    assert CutSearch.borders_of(placement) == (0, 1, 4, 6)
    assert CutSearch.borders_of(replace(placement, details={})) == (0,)


def test_one_gpu_and_one_cut_are_no_special_case() -> None:
    layers = [{"name": f"l{i}", "forward": 1e-3, "backward": 2e-3} for i in range(3)]
    for gpus in (1, 3):
        schedule = weft.solve(spec_of(layers, "full", gpus=gpus, shapes=["chain"]), effort=1.0)
        assert schedule.makespan == pytest.approx({1: 27e-3, 3: 15e-3}[gpus])
        assert schedule.solver["bound_over_placements"] == pytest.approx(schedule.makespan)


def climbing(mode: Mode, seed: int = 0) -> Climb[CutDecision]:
    """A climb of a small spec, from the first looks at its cuts."""
    spec = drawn_spec(1, mode, count=8, micro_batches=4, shapes=["chain", "v", "loop"], chunks=2)
    cuts = CutSearch(cut_spaces(spec, 4), 4, Budget(600.0, deterministic=2.0, seed=seed))
    cuts.open(100.0)
    climb: Climb[CutDecision] = Climb(cuts.budget)
    tried(cuts, climb, beside=False)
    return climb


@pytest.mark.parametrize("mode", MODES)
def test_it_only_gets_better_and_keeps_judged_schedules(mode: Mode) -> None:
    climb = climbing(mode)
    before = climb.kept[0].makespan
    climb.run(climb.budget.slice(0.3))
    assert climb.kept[0].makespan <= before
    assert [kept.makespan for kept in climb.kept] == sorted(kept.makespan for kept in climb.kept)
    for kept in climb.kept:
        assert kept.schedule.problem == kept.decision.problem
        validate(kept.schedule)


def test_of_one_cut_the_best_is_kept_and_of_one_makespan_few() -> None:
    climb = climbing("split")
    climb.run(climb.budget.slice(0.3))
    cuts = [kept.decision.key for kept in climb.kept]
    assert len(set(cuts)) == len(cuts) <= 12
    assert max(Counter(round(kept.makespan, 12) for kept in climb.kept).values()) <= 2
    known = list(climb.kept)
    climb.keep(climb.kept[-1])
    assert climb.kept == known


@pytest.mark.slow
def test_it_repeats() -> None:
    climbs = [climbing("split", seed=3) for _ in range(2)]
    for climb in climbs:
        climb.run(climb.budget.slice(0.2))
    first, second = ([(kept.decision.borders, kept.makespan) for kept in climb.kept] for climb in climbs)
    assert first == second


def test_neighbours_are_one_layer_s_move_away_and_their_bounds_hold() -> None:
    climb = climbing("split")
    parent, schedule = climb.kept[0].decision, climb.kept[0].schedule
    found = parent.neighbours(schedule)
    assert found and len({cut.key for cut in found}) == len(found)
    for cut in found[:6]:
        assert cut.group == parent.group and all(a < b for a, b in pairwise(cut.borders))
        moved = [b - a for a, b in zip(parent.borders, cut.borders, strict=True)]
        assert {*moved} <= {0, 1} or {*moved} <= {0, -1}
        own = climb.ordered(cut, cut.carried(parent, schedule), climb.budget.slice())
        assert own is None or own.makespan >= cut.bound * (1 - 1e-9)
