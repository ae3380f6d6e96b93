"""Graphs of replicated stages by levels, small ones by hand and all of them."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.replicated_stages import every_row, load, problems, shared, two
from weft.solver.placement import judge
from weft.solver.placement.bracket import simple_bound
from weft.solver.placement.dag.place_graph import place_graph
from weft.solver.placement.dag.stage_dag import stages_by_depth
from weft.solver.placement.groups import groups_of
from weft.solver.placement.problem import DeviceKind, PlacementProblem
from weft.solver.placement.refusals import NoPlacement


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


@settings(max_examples=examples(60))
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
