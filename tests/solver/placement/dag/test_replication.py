"""Stages on several devices: costs, the least load of graphs and of rows against all of them, and their schedules."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.placements import tensors_between
from weft.solver.cpsat.solve import Budget
from weft.solver.placement import judge
from weft.solver.placement.bounds.registry import simple_bound
from weft.solver.placement.dag.constructions import by_levels, by_rows
from weft.solver.placement.dag.levels.ideals import Ideals, TooWide
from weft.solver.placement.dag.levels.least_step import least_step
from weft.solver.placement.dag.levels.level_search import LevelGoal, LevelSolved, first_chain, levels
from weft.solver.placement.dag.levels.shorten_paths import shorten_paths
from weft.solver.placement.dag.levels.ways import ways_of
from weft.solver.placement.dag.place_graph import place_graph
from weft.solver.placement.dag.stage_blocks import one_f_one_b, stage_problem, step_of, work_of
from weft.solver.placement.dag.stage_dag import stages_by_depth
from weft.solver.placement.groups import Groups, groups_of
from weft.solver.placement.orders.slice_replicated import slice_replicated
from weft.solver.placement.placement import Stage
from weft.solver.placement.problem import Degree, DeviceKind, Node, PlacementError, PlacementProblem, Tensor
from weft.solver.placement.refusals import NoPlacement


def shared(problem: PlacementProblem, *degrees: int, rate: float = 1.0, all_reduce: float = 0.0) -> PlacementProblem:
    """``problem`` with stages on so many devices too, each reaching ``rate`` of a whole micro-batch's rate."""
    return dataclasses.replace(problem, degrees=tuple(
        Degree(r, tuple(tuple(None if time is None else time / r / rate for time in node.times)
                        for node in problem.nodes), all_reduce * 2 * (r - 1) / r) for r in degrees))


def two(devices: int, **sizes: float) -> PlacementProblem:
    nodes = (Node("a", (1.0,), 2.0, 4.0, gradient=1.0), Node("b", (3.0,), 2.0, 4.0, gradient=3.0))
    return PlacementProblem("two", (DeviceKind("gpu", devices, sizes.get("memory")),), nodes,
                            (Tensor(0, (1,), sizes.get("transfer", 0.0)),), micro_batches=10)


def test_a_replicated_stage_costs_each_of_its_devices_a_part_of_the_micro_batch_and_of_the_all_reduce() -> None:
    problem = shared(two(4, transfer=0.5), 2, rate=0.75, all_reduce=1.0)
    first, second = judge.stages_of(problem, [(0, [0]), (0, [1])], [1, 2])
    assert (first.compute, first.transfers, first.all_reduce, first.load) == (1.0, 0.5, 0.0, 1.5)
    assert (second.compute, second.transfers) == (2.0, 0.25)
    assert second.all_reduce == pytest.approx(3.0 / 10)
    assert second.load == pytest.approx(2.55)
    assert (first.memory, second.memory) == (2 + 2 * 4, 2 + 4 / 2)


def test_the_heavy_stage_of_a_row_gets_the_other_devices() -> None:
    found = place_graph(shared(two(4), 2, 3))
    assert [(stage.devices, stage.load) for stage in found.stages] == [(1, 1.0), (3, 1.0)]
    assert found.status == "optimal"
    assert [stage["devices"] for stage in found.to_json()["stages"]] == [1, 3]


def test_an_all_reduce_that_costs_more_than_it_spares_is_left_out() -> None:
    found = place_graph(shared(two(4), 2, 3, all_reduce=9.0))
    assert [stage.devices for stage in found.stages] == [1, 1]


def test_what_fits_no_device_may_fit_two() -> None:
    problem = two(3, memory=5.0)
    with pytest.raises(NoPlacement, match="'a' holds 6"):
        place_graph(problem)
    with pytest.raises(NoPlacement, match="no graph of stages fits"):
        place_graph(shared(problem, 2))  # the first of two stages holds two micro-batches
    one_stage = dataclasses.replace(problem, kinds=(DeviceKind("gpu", 3, 8.0),))
    assert [stage.devices for stage in place_graph(shared(one_stage, 2)).stages] == [2]


@pytest.mark.parametrize(("degrees", "micro_batches", "message"), [
    ((Degree(2, ((0.5,),)),), 4, "stages on 2 devices: times of 1 operators, there are 2"),
    ((Degree(3, ((1.0,), (1.0,))), Degree(2, ((1.0,), (1.0,)))), 4, "by rising number of devices"),
    ((Degree(2, ((0.5,), (None,))),), 4, "operator 'b' has times on other kinds"),
    ((Degree(2, ((0.5,), (1.5,)), 1.0),), None, "say how many micro-batches a step has"),
    ((Degree(2, ((0.5,), (-1.5,))),), 4, "operator 'b': time is -1.5"),
])
def test_degrees_that_mean_nothing_are_refused(degrees: tuple[Degree, ...], micro_batches: int | None,
                                               message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        dataclasses.replace(two(4), degrees=degrees, micro_batches=micro_batches)


def test_a_stage_on_one_device_is_not_replicated() -> None:
    with pytest.raises(PlacementError, match="give 2 or more"):
        Degree(1, ())


def test_devices_of_several_kinds_are_refused() -> None:
    problem = PlacementProblem("two kinds", (DeviceKind("a", 2), DeviceKind("b", 1)), (Node("n", (1.0, 1.0)),), ())
    with pytest.raises(PlacementError, match="devices of one kind"):
        place_graph(shared(problem, 2))


def test_a_graph_that_is_too_wide_gets_the_best_row_and_a_bound() -> None:
    nodes = tuple(Node(f"n{i}", (1.0 + i / 100,)) for i in range(40))
    found = place_graph(shared(PlacementProblem("wide", (DeviceKind("gpu", 3),), nodes, (), micro_batches=4), 2))
    assert found.solver["by"] == "rows"
    assert found.bound == pytest.approx(sum(node.times[0] or 0 for node in nodes) / 3)
    assert found.bound <= found.objective <= 1.1 * found.bound


def towers(count: int, length: int, devices: int) -> PlacementProblem:
    nodes = tuple(Node(f"t{t}.{i}", (1.0 + i % 2,), gradient=1.0) for t in range(count) for i in range(length))
    last = Node("join", (4.0,), gradient=1.0)
    tensors = tuple(Tensor(t * length + i, (t * length + i + 1 if i + 1 < length else count * length,), 0.1)
                    for t in range(count) for i in range(length))
    problem = PlacementProblem("towers", (DeviceKind("gpu", devices),), (*nodes, last), tensors, micro_batches=4)
    return shared(problem, 2, 4, rate=0.9, all_reduce=0.1)


def test_paths_are_made_of_a_few_pieces_of_like_work_and_stay_interchangeable() -> None:
    groups = groups_of(towers(3, 8, 4))
    short = shorten_paths(groups, 4)
    assert sorted(short.least.tolist()) == [3.0] * 12 + [4.0]
    assert sorted(node for members in short.members for node in members) == list(range(25))
    ideals = Ideals(short, Budget(), limit=math.inf, devices=4, in_a_row=False, twins=True)
    assert sorted(map(len, ideals.families)) == [1, 3]


def test_a_graph_too_wide_for_its_operators_is_searched_in_longer_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow(groups: Groups, budget: Budget, goal: LevelGoal, **options: Any) -> LevelSolved:
        if groups.count > 12:
            raise TooWide("for this test")
        return levels(groups, budget, goal, **options)

    problem = towers(3, 8, 8)
    exact = place_graph(problem)
    for way in (by_levels, by_rows):
        monkeypatch.setattr(way, "levels", narrow)
    found = place_graph(problem)
    assert (exact.solver["by"], found.solver["by"]) == ("levels", "rows")
    assert exact.bound <= found.objective <= 1.2 * exact.bound
    assert found.bound <= exact.bound
    row = first_chain(groups_of(problem), Budget())
    assert row is not None and found.objective <= row.value
    assert "too wide for proof" in str(found.solver["coarsening"])
    assert not judge.breaches(problem, found.stages)


def test_a_graph_that_is_too_large_is_refused() -> None:
    nodes = tuple(Node(f"n{i}", (1.0,)) for i in range(2001))
    problem = PlacementProblem("huge", (DeviceKind("gpu", 2),), nodes, (), micro_batches=4)
    with pytest.raises(PlacementError, match="huge has 2001 operators to divide"):
        place_graph(shared(problem, 2))


# -- against all stages on all numbers of devices ----------------------------------------------------------------------


@st.composite
def problems(draw: st.DrawFn, least: int = 0) -> PlacementProblem:
    """Up to five operators on up to five devices, of which a stage may have two, three or four."""
    count = draw(st.integers(1, 5))
    alike = draw(st.booleans())
    costs = [(draw(st.integers(least, 6)), draw(st.integers(0, 2)), draw(st.integers(0, 3)), draw(st.integers(0, 3)))
             for _ in range(1 if alike else count)] * (count if alike else 1)
    nodes = tuple(Node(f"n{i}", (time,), resident, held, gradient=gradient)
                  for i, (time, resident, held, gradient) in enumerate(costs))
    tensors = tensors_between(draw, count)
    memory = draw(st.one_of(st.none(), st.integers(2, 14)))
    problem = PlacementProblem("tiny", (DeviceKind("gpu", draw(st.integers(1, 5)), memory),), nodes, tensors,
                               micro_batches=draw(st.integers(1, 3)))
    degrees = sorted(draw(st.sets(st.sampled_from([2, 3, 4]), min_size=1)))
    return shared(problem, *degrees, rate=draw(st.sampled_from([1.0, 0.75])),
                  all_reduce=draw(st.sampled_from([0.0, 0.5])))


def every_row(problem: PlacementProblem) -> Iterator[tuple[list[tuple[int, list[int]]], tuple[int, ...]]]:
    """All divisions into stages in an order that breaks none, with all numbers of devices for each."""
    count, devices = len(problem.nodes), problem.devices
    degrees = [1, *(degree.devices for degree in problem.degrees)]
    for used in range(1, min(count, devices) + 1):
        for stage_of in itertools.product(range(used), repeat=count):
            if set(stage_of) != set(range(used)) or any(stage_of[a] > stage_of[b] for a, b in problem.order):
                continue
            parts = [(0, [n for n in range(count) if stage_of[n] == s]) for s in range(used)]
            for on in itertools.product(degrees, repeat=used):
                if sum(on) <= devices:
                    yield parts, on


def load(stages: tuple[Stage, ...]) -> float:
    return max(stage.load for stage in stages)


@settings(max_examples=60, deadline=None)
@given(problems(), st.sampled_from([0.0, 0.3]))
def test_levels_find_the_least_load_and_depth_of_all_graphs_of_replicated_stages(problem: PlacementProblem,
                                                                              slack: float) -> None:
    graphs = []
    for parts, on in every_row(problem):
        stages, _, deep = stages_by_depth(problem, parts, on)
        if not judge.breaches(problem, stages):
            graphs.append((load(stages), max(deep)))
    if not graphs:
        with pytest.raises(NoPlacement):
            place_graph(problem, slack=slack)
        return
    least = min(graphs)[0]
    found = place_graph(problem, slack=slack)
    assert found.status == "optimal" or (found.objective > found.bound and slack)
    assert found.bound == pytest.approx(least, rel=1e-6)
    assert simple_bound(groups_of(problem)) <= least * (1 + 1e-9)
    shallowest = min(deep for value, deep in graphs if value <= least * (1 + slack) + 1e-9)
    assert found.depth == found.depth_bound == shallowest
    assert not judge.breaches(problem, found.stages)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_rows_of_replicated_stages_are_the_best_of_all_rows_and_of_an_order(problem: PlacementProblem) -> None:
    rows, in_order = [], []
    for parts, on in every_row(problem):
        stages = judge.stages_of(problem, parts, on)
        if not judge.breaches(problem, stages):
            rows.append(load(stages))
            if [n for _, nodes in parts for n in nodes] == sorted(n for _, nodes in parts for n in nodes):
                in_order.append(load(stages))
    groups = groups_of(problem)
    found = levels(groups, Budget(), LevelGoal(least=simple_bound(groups), in_a_row=True)).stages
    assert (found.value if found else float("inf")) == pytest.approx(min(rows, default=float("inf")), rel=1e-6)
    place = groups.spread(range(groups.count))
    sliced = slice_replicated(groups, place)
    assert (sliced.value if sliced else float("inf")) == pytest.approx(min(in_order, default=float("inf")))
    for slicing in (found, sliced, first_chain(groups, Budget())):
        if slicing is not None:
            parts = [(kind, [n for g in inside for n in groups.members[g]]) for kind, inside in slicing.stages]
            stages = judge.stages_of(problem, parts, slicing.devices)
            assert not judge.breaches(problem, stages)
            assert load(stages) == pytest.approx(slicing.value)


# -- schedules ---------------------------------------------------------------------------------------------------------


def test_a_replicated_stage_runs_on_all_its_devices_at_once_and_adds_up_gradients_at_the_end() -> None:
    problem = shared(two(4), 2, 3, all_reduce=0.75)
    found = place_graph(problem)
    assert [stage.devices for stage in found.stages] == [1, 3]
    works = work_of(problem, found.stages)
    assert works[1].all_reduce == pytest.approx(0.75 * 2 * 2 / 3 * 3)
    blocks = stage_problem("two", works, found.after)
    schedule = one_f_one_b(blocks, works, found.after, 10)
    assert [len(block.devices) for block in blocks.blocks] == [1, 3, 1, 3]
    # Equal stages, two deep: eleven forwards and backwards one after another; the all-reduce of the second stage, which
    # is done with its backwards first, ends later than the first stage's last backward.
    last = schedule.makespan - works[0].backward
    assert schedule.makespan == pytest.approx(11 * 1.0)
    assert step_of(schedule, works) == pytest.approx(last + works[1].all_reduce)
    assert step_of(schedule, works) >= 10 * found.objective


def test_a_block_problem_has_the_all_reduce_in_equal_parts_in_its_backwards() -> None:
    problem = shared(two(4), 2, 3, all_reduce=0.75)
    found = place_graph(problem)
    apart, spread = (work_of(problem, found.stages, spread=spread) for spread in (False, True))
    assert [work.all_reduce for work in spread] == [0.0, 0.0]
    for one, other, stage in zip(apart, spread, found.stages, strict=True):
        assert other.backward == pytest.approx(one.backward + one.all_reduce / 10)
        assert other.forward + other.backward == pytest.approx(stage.load)


def test_stages_without_a_backward_have_forwards_only() -> None:
    nodes = tuple(dataclasses.replace(node, forward=1.0) for node in two(4).nodes)
    found = place_graph(shared(dataclasses.replace(two(4, transfer=0.5), nodes=nodes), 2))
    works = work_of(found.problem, found.stages)
    blocks = stage_problem("inference", works, found.after).blocks
    assert [block.name for block in blocks] == [f"F{s}" for s in range(len(found.stages))]
    assert [block.duration for block in blocks] == pytest.approx([stage.load for stage in found.stages])


# -- the least step ----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(problems(least=1), st.integers(1, 4))
def test_no_step_of_a_graph_of_stages_is_shorter_than_the_bound(problem: PlacementProblem, count: int) -> None:
    """Against 1F1B on every graph of stages, and against the formula evaluated for every one of them."""
    problem = dataclasses.replace(problem, micro_batches=count)
    groups = groups_of(problem)
    ways = ways_of(groups)
    group_of = groups.spread(range(groups.count))
    allowed, steps = [], []
    for parts, on in every_row(problem):
        stages, after, _ = stages_by_depth(problem, parts, on)
        if judge.breaches(problem, stages):
            continue
        works = work_of(problem, stages)
        steps.append(step_of(one_f_one_b(stage_problem("tiny", works, after), works, after, count), works))
        reached = [ways.to({group_of[node] for node in stage.nodes}) for stage in stages]
        allowed.append(max(ways.longest, *(
            max(count * stage.load + before, count * (stage.load - stage.all_reduce) + both)
            for stage, (before, both) in zip(stages, reached, strict=True))))
        assert steps[-1] >= allowed[-1] * (1 - 1e-9)
    assume(steps)
    found = least_step(groups, Budget(), least=simple_bound(groups), most=2 * min(steps))
    assert found.bound <= min(allowed) * (1 + 1e-9)
    assert found.bound >= min(allowed) * (1 - 6e-3)
    assert found.stages
    for slicing in found.stages:
        parts = [(kind, [n for g in inside for n in groups.members[g]]) for kind, inside in slicing.stages]
        stages, _, _ = stages_by_depth(problem, parts, slicing.devices)
        assert not judge.breaches(problem, stages)
        assert load(stages) == pytest.approx(slicing.value)
