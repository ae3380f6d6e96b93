"""Graphs of stages: small cases by hand, and every graph of stages of small problems."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import strategies as st

from tests.support.examples import for_all
from tests.support.stage_graphs import EFFORT, best_graph, forks
from weft.solver.cpsat.budget import Budget
from weft.solver.placement import Degree, DeviceKind, Node, PlacementError, PlacementProblem, PlacementTensor, place
from weft.solver.placement.dag.levels.ideals import TooWide
from weft.solver.placement.dag.levels.level_search import LevelGoal, levels
from weft.solver.placement.dag.place_graph import place_graph
from weft.solver.placement.groups import groups_of
from weft.solver.placement.refusals import NoPlacement


def test_two_branches_of_four_layers_on_eight_devices_are_four_deep_and_not_eight() -> None:
    """GraphPipe's case study: two branches of four layers, each attention and two linear layers, on eight devices."""
    nodes = tuple(Node(f"b{b}.{layer}.{part}", (time,), 0, 1) for b in range(2) for layer in range(4)
                  for part, time in (("attention", 4.0), ("up", 3.0), ("down", 3.0)))
    tensors = tuple(PlacementTensor(i, (i + 1,), 0.1) for i in range(len(nodes) - 1) if (i + 1) % 12)
    problem = PlacementProblem("case study", (DeviceKind("gpu", 8),), nodes, tensors)
    graph, row = place_graph(problem, effort=EFFORT), place(problem, effort=EFFORT)
    assert (graph.depth, graph.depth_bound, len(row.stages)) == (4, 4, 8)
    assert graph.objective == pytest.approx(row.objective)
    assert {stage.nodes for stage in graph.stages} == {stage.nodes for stage in row.stages}
    assert [stage.in_flight for stage in row.stages] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert [stage.in_flight for stage in graph.stages] == [4, 4, 3, 3, 2, 2, 1, 1]


@pytest.mark.parametrize("slack", [-0.1, float("nan"), float("inf")])
def test_slack_out_of_range_is_refused(slack: float) -> None:
    with pytest.raises(PlacementError, match=f"slack is {slack}, it must be 0 or more and finite"):
        place_graph(forks(2, 1, devices=2), slack=slack)


@st.composite
def trained(draw: st.DrawFn) -> PlacementProblem:
    """Forward operators and their backward twins, of which some pass tensors to each other that no forward mirrors."""
    count = draw(st.integers(2, 5))
    nodes = [Node(f"{way}{i}", (draw(st.integers(0, 3)),), draw(st.integers(0, 1)), draw(st.integers(0, 1)), i,
                  way == "b") for way in "fb" for i in range(count)]
    tensors = [PlacementTensor(i, (j,), draw(st.sampled_from([0.0, 1.0]))) for i in range(count)
               for j in range(i + 1, count)
               if draw(st.booleans())]
    tensors += [PlacementTensor(count + j, (count + i,), draw(st.sampled_from([1.0, 6.0]))) for i in range(count)
                for j in range(i + 1, count) if draw(st.integers(0, 3)) == 0]
    devices = DeviceKind("gpu", draw(st.integers(1, 3)), draw(st.none() | st.integers(4, 12)))
    return PlacementProblem("trained", (devices,), tuple(nodes), tuple(tensors), draw(st.integers(1, 3)))


@for_all(trained(), tries=60)
def test_tensors_beside_the_forward_graph_count_where_they_cross(problem: PlacementProblem) -> None:
    """Two operators of which neither comes before the other may be cheap together and too much for a device apart."""
    best = best_graph(problem)
    if best is None:
        with pytest.raises(NoPlacement):
            place_graph(problem, effort=EFFORT)
        return
    found = place_graph(problem, effort=EFFORT)
    assert found.status == "optimal"
    assert found.objective == pytest.approx(best[0], rel=1e-6)
    assert found.depth == best[1]


def test_a_gradient_between_branches_keeps_them_together() -> None:
    """x, then a and b, then y, forwards; and 5 to pass from b's backward to a's: apart, each of them is above 5."""
    nodes = [Node(way + name, (1.0,), colocation=name, backward=way == "b") for way in "fb" for name in "xaby"]
    tensors = [PlacementTensor(0, (1,)), PlacementTensor(0, (2,)), PlacementTensor(1, (3,)), PlacementTensor(2, (3,)),
               PlacementTensor(6, (5,), 5.0)]
    problem = PlacementProblem("beside", (DeviceKind("gpu", 3),), tuple(nodes), tuple(tensors), 4)
    found = place_graph(problem, effort=EFFORT)
    assert (found.objective, found.depth) == (4.0, 3)
    assert found.bound == pytest.approx(4.0)
    with pytest.raises(TooWide, match="neither comes before the other"):
        levels(groups_of(problem), Budget(), LevelGoal(least=0.0))
    halves = Degree(2, tuple((0.5,) for _ in nodes))
    shared = place_graph(dataclasses.replace(problem, degrees=(halves,)), effort=EFFORT)  # without proof: in a row
    assert shared.solver["by"] == "rows" and shared.bound <= shared.objective <= 4.0
