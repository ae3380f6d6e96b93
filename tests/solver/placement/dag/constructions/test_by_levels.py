"""Graphs of replicated stages by levels, small ones by hand and all of them."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from tests.support.examples import for_all
from tests.support.replicated_stages import every_row, load, problems
from weft.solver.placement import PlacementProblem, judge, place_graph
from weft.solver.placement.bracket import simple_bound
from weft.solver.placement.dag.stage_dag import stages_by_depth
from weft.solver.placement.groups import groups_of
from weft.solver.placement.refusals import NoPlacement


@for_all(problems(), st.sampled_from([0.0, 0.3]), tries=60)
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
