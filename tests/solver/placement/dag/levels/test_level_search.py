"""The least load, then the least depth, by levels, against all graphs of stages."""

from __future__ import annotations

import pytest

from tests.support.stage_graphs import EFFORT, forks
from weft.solver.cpsat.budget import Budget
from weft.solver.placement import DeviceKind, Node, PlacementProblem, place_graph
from weft.solver.placement.bracket import simple_bound
from weft.solver.placement.dag.levels.ideals import TooWide
from weft.solver.placement.dag.levels.level_search import LevelGoal, levels
from weft.solver.placement.dag.stage_dag import GraphPlacement
from weft.solver.placement.groups import groups_of


def test_equal_branches_are_told_apart_by_place_and_not_by_name() -> None:
    """Sixteen equal operators on eight devices: hundreds of ideals, of which a few dozen differ in more than names.
    """
    problem = forks(4, 4, devices=8, end=0.25, transfer=0.01)
    groups = groups_of(problem)
    found = levels(groups, Budget(), LevelGoal(least=simple_bound(groups), max_cuts=20_000))
    assert found.stages is not None
    assert found.bound == pytest.approx(found.stages.value)
    assert found.depth == 3
    graph = place_graph(problem, effort=EFFORT)
    assert isinstance(graph, GraphPlacement)
    assert (graph.depth, graph.solver["by"]) == (3, "levels")
    assert len({node for stage in graph.stages for node in stage.nodes}) == 17


def test_wide_graphs_are_too_wide() -> None:
    nodes = tuple(Node(f"n{i}", (1.0 + i / 100,)) for i in range(24))
    groups = groups_of(PlacementProblem("wide", (DeviceKind("gpu", 3),), nodes, ()))
    with pytest.raises(TooWide):
        levels(groups, Budget(), LevelGoal(least=simple_bound(groups), max_cuts=20_000))
