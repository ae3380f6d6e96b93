"""The parts of the encoding by depth against all graphs of stages."""

from __future__ import annotations

import pytest
from hypothesis import assume

from tests.support.examples import for_all
from tests.support.stage_graphs import EFFORT, best_graph, problems
from weft.solver.cpsat.budget import Budget
from weft.solver.placement.dag.depth_encoding import least_bottleneck_by_depth, least_depth, least_depths
from weft.solver.placement.groups import groups_of
from weft.solver.placement.problem import PlacementProblem
from weft.solver.placement.reductions.interchangeable import order_branches, order_twins


@for_all(problems(), tries=25)
def test_the_encodings_parts_agree_with_all_graphs_of_stages(problem: PlacementProblem) -> None:
    best = best_graph(problem)
    groups = order_branches(order_twins(groups_of(problem)))
    found = least_bottleneck_by_depth(groups, Budget(deterministic=EFFORT), None, 0.0)
    assert found.infeasible == (best is None)
    assume(best is not None and best[0] > 0)
    assert best is not None and found.stages is not None
    assert found.stages.value == pytest.approx(best[0], rel=1e-6)
    shallow = least_depth(groups, Budget(deterministic=EFFORT), best[0])
    assert shallow.bound == best[1]
    assert max(least_depths(groups, best[0])) <= best[1]
