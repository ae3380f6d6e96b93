"""All cuts of one layout: what is known of them, and orders carried to them."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tests.oracles.whole import TooLarge, least_makespan
from tests.support.cut_specs import MODES, Mode, all_cuts, problems_of, space_of
from weft.models.cuts.space import CutSpace, orders_of_blocks, orders_of_stages, variants_of
from weft.solver import BASELINES, NotApplicable, Problem, Schedule, violations
from weft.solver.control.clock import OutOfTime, watching
from weft.solver.pipeline import Pipeline
from weft.solver.ticks import TickProblem
from weft.solver.timing import Orders, time_orders

EVER = 1 << 50


def scheduled(problem: Problem, micro_batches: int, orders: Orders) -> tuple[int, bool]:
    """The makespan in ns, and whether the judge accepts it."""
    operations = time_orders(problem, micro_batches, orders)
    found = Schedule(problem, micro_batches, operations, makespan_bound=0.0, solver={"name": "weft"})
    return round(found.makespan * 1e9), not violations(found, limit=1)


def listed(space: CutSpace) -> dict[tuple[int, ...], int]:
    assert space.cuts is not None
    return {tuple(map(int, row)): int(bound)
            for row, bound in zip(space.cuts.borders, space.cuts.bounds, strict=True)}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("shape", "chunks"), [("chain", 1), ("v", 2), ("loop", 2)])
def test_an_order_is_carried_to_the_cut_that_it_serves_best(mode: Mode, shape: str, chunks: int) -> None:
    moved = 0
    for number in (1, 2, 4):
        space = space_of(number, mode, shape, chunks, unequal=number > 2)
        space.open(EVER)
        problems = problems_of(space)
        for cut in list(problems)[::3]:
            pipeline = Pipeline.of(problems[cut])
            for name in ("gpipe", "1f1b", "zb-v", "greedy"):
                try:
                    orders = BASELINES[name].orders(problems[cut], space.micro_batches)
                except NotApplicable:
                    continue
                rows = orders_of_stages(pipeline, orders)
                tried = {other: scheduled(problem, space.micro_batches, orders_of_blocks(Pipeline.of(problem), rows))
                         for other, problem in problems.items() if other in listed(space)}
                fitting = [makespan for makespan, fits in tried.values() if fits]
                found = space.carried(cut, rows)
                assert (None if found is None else found[0]) == min(fitting, default=None)
                assert found is None or tried[found[1]] == (found[0], True)
                moved += found is not None and found[1] != cut
    assert moved >= 3


def test_of_very_many_cuts_those_nearby_and_those_with_the_least_bounds_are_looked_at(
        monkeypatch: pytest.MonkeyPatch) -> None:
    space = space_of(2, "full", "v", 2, count=9)
    space.open(EVER)
    cut = (0, 1, 2, 3, 9)
    problem = space.candidate(cut).problem
    orders = BASELINES["greedy"].orders(problem, 3)
    whole = space.carried(cut, orders_of_stages(Pipeline.of(problem), orders))
    monkeypatch.setattr("weft.models.cuts.space.MOST_CARRIED", 12 * sum(map(len, orders)))
    some = space.carried(cut, orders_of_stages(Pipeline.of(problem), orders))
    assert some is not None and whole is not None and some >= whole
    near = listed(space)
    looked_at = [tuple(map(int, space.cuts.borders[i])) for i in space._near(cut, 12)] if space.cuts else []
    assert cut in looked_at and min(near, key=near.__getitem__) in looked_at and len(looked_at) <= 12


@pytest.mark.parametrize("opened", [False, True])
def test_where_time_ends_while_cuts_are_listed_the_list_stays_as_it_was(opened: bool) -> None:
    space, ended = space_of(2, "full", "v", 2, count=9), 0
    if opened:
        space.open(EVER, 5)
    before = (space.least, listed(space) if opened else None, len(space.bounded))
    for looks in range(1000):
        asked = iter([False] * looks)
        with watching(partial(next, asked, True)):
            try:
                space.open(EVER)
                break
            except OutOfTime:
                ended += 1
        assert (space.least, listed(space) if opened else None, len(space.bounded)) == before
        space.narrow(EVER)
    assert ended and space.complete


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("shape", "chunks", "count"), [("chain", 1, 6), ("v", 2, 5)])
def test_the_least_of_all_is_never_above_the_best_schedule_of_any_cut(mode: Mode, shape: str, chunks: int,
                                                                       count: int) -> None:
    met = 0
    for number in range(5):
        space = space_of(number, mode, shape, chunks, count=count, micro_batches=2, unequal=number > 2)
        found = []
        for problem in problems_of(space).values():
            try:
                found.append(least_makespan(problem, 2, 3_000))
            except TooLarge:
                break
        else:
            best = min((int(makespan * 10**9) for makespan in found if makespan is not None), default=None)
            least = [space.floor, space.least]
            space.open(EVER)
            least.append(space.least)
            while space.waiting:
                before = listed(space)
                assert space.tighten(3, EVER) > 0
                assert all(bound >= before[cut] for cut, bound in listed(space).items())
            least.append(space.least)
            if best is not None:
                assert all(bound is not None and bound <= best for bound in least)
                space.narrow(best + 1)
                assert space.least is not None
                met += 1
    assert met >= 2


def test_what_is_ruled_out_or_taken_is_left_no_more() -> None:
    space = space_of(2, "split")
    assert space.least == space.floor and not space.waiting and not space.some(3) and not space.complete
    space.open(EVER)
    assert space.waiting and space.complete
    known = listed(space)
    by_bound = sorted(known, key=known.__getitem__)
    [first] = space.some(1)
    assert known[first] == space.least == known[by_bound[0]]
    space.raise_bound(first, known[first] - 1)
    assert listed(space) == known
    space.raise_bound(first, known[by_bound[-1]] + 5)
    assert listed(space)[first] == known[by_bound[-1]] + 5 and space.some(99)[-1] == first
    assert space.take(first) == known[by_bound[-1]] + 5
    assert space.take((0, 1)) == space.floor  # of another layout
    assert set(listed(space)) == set(known) - {first}
    space.open(EVER)  # listed again, without what was taken, of which as much is known
    assert set(listed(space)) == set(known) - {first}
    assert space.take(first) == known[by_bound[-1]] + 5
    limit = known[by_bound[-1]]
    space.narrow(limit)
    assert set(listed(space)) == {cut for cut, bound in known.items() if bound < limit and cut != first}
    space.narrow(0)
    assert space.least is None and not space.some(1) and not space.waiting
    assert space.carried(first, []) is None


def test_cuts_that_there_was_no_room_for_bound_the_least() -> None:
    space = space_of(2, "full", "v", 2, count=8)
    space.open(EVER)
    every = listed(space)
    space.open(EVER, 4)
    assert len(listed(space)) <= 4 and not space.complete
    assert space.least is not None and space.least <= min(every.values())
    left_out = space.cuts.left_out if space.cuts else None
    assert left_out is not None
    for cut in listed(space):
        space.raise_bound(cut, left_out + 7)
    assert space.least == max(left_out, space.floor)  # whatever is known of those that are listed
    for cut in list(listed(space)):
        space.take(cut)
    assert space.least == max(left_out, space.floor)  # of those that are not listed
    space.narrow(left_out)
    assert space.least is None


def test_bounds_are_of_what_is_listed_now() -> None:
    space = space_of(2, "full")
    space.open(EVER)
    space.cuts = None  # as if nothing had been listed
    assert not space.waiting and space.tighten(10, EVER) == 0 and space.least == space.floor


def test_equal_bounds_are_ranked_by_the_largest_stage() -> None:
    space = space_of(2, "full", "chain", count=9, gpus=3)
    space.open(EVER)
    assert space.cuts is not None
    space.cuts.bounds[:] = 7
    ranked = space.some(len(list(all_cuts(space))))
    widths = [int(np.diff(cut).max()) for cut in ranked]
    assert widths == sorted(widths) and widths[0] == 3 and len(set(ranked)) == len(space.cuts)


def index_of(pipeline: Pipeline) -> dict[int, int]:
    """For each block of a problem, which block of the variants it is."""
    count, found = len(pipeline.stages), {}
    for s, stage in enumerate(pipeline.stages):
        for which, block in enumerate((stage.forward, stage.backward, stage.weight_grad)):
            if block is not None:
                found[block] = which * count + s
        if stage.input_grad is not None:
            found[stage.input_grad] = count + s
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("shape", "chunks"), [("chain", 1), ("v", 2), ("loop", 2), ("wave", 3)])
def test_a_variant_is_its_cut_s_problem(mode: Mode, shape: str, chunks: int) -> None:
    for number in (0, 2):
        space = space_of(number, mode, shape, chunks, count=7, unequal=number > 1)
        problems = problems_of(space)
        variants = variants_of(space.ground, np.array(list(problems), dtype=np.int16), trains=mode != "none")
        assert len(variants) == len(problems)
        for k, problem in enumerate(problems.values()):
            own = index_of(Pipeline.of(problem))
            ticks = TickProblem.of(problem)
            nanoseconds, unit = ticks.tick * 10**9, ticks.memory_unit
            for block in ticks.blocks:
                [device] = problem.blocks[block].devices
                assert variants.device[own[block]] == device
                assert variants.durations[k, own[block]] == ticks.durations[block] * nanoseconds
                assert variants.take[k, own[block]] == ticks.take[device][block] * unit
                assert variants.change[k, own[block]] == ticks.change[device][block] * unit
            for absent in set(range(len(variants.device))) - set(own.values()):
                assert not variants.durations[k, absent] and not variants.take[k, absent]
            assert [*variants.capacity[k]] == [device.memory for device in problem.devices]
            lags = {(own[arc.source], own[arc.target]): arc.lag * nanoseconds for arc in ticks.arcs}
            known = {(wait.source, wait.target): lag
                     for wait, lag in zip(variants.waits, variants.lags[k], strict=True)}
            for (source, target), lag in lags.items():
                stages = len(variants.device) // (1 if mode == "none" else 3)
                through = (source, target - stages) if (source, target) not in known else (source, target)
                assert known[through] == lag  # a weight gradient alone waits as its input gradient would
        assert sorted(variants.order) == list(range(len(variants.device)))


def test_orders_come_back_and_blocks_that_are_not_there_stand_beside_those_that_are() -> None:
    space = space_of(1, "split", "v", 2)  # without an input gradient in layer 0, a weight gradient in layer 3
    met = 0
    for problem in problems_of(space).values():
        pipeline = Pipeline.of(problem)
        for name, baseline in BASELINES.items():
            try:
                orders = [list(row) for row in baseline.orders(pipeline.problem, 3)]
            except NotApplicable:
                continue
            rows = orders_of_stages(pipeline, orders)
            assert sum(map(len, rows)) == 3 * 12, name
            assert orders_of_blocks(pipeline, rows) == orders
            met += 1
            for row in rows:
                for block in range(4):  # where one of both is not there
                    if pipeline.stages[block].input_grad is None:
                        for m in range(3):
                            if (4 + block, m) in row:
                                assert row.index((8 + block, m)) == row.index((4 + block, m)) + 1
    assert met >= 20
