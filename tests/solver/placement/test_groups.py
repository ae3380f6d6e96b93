"""What shares a stage is one group, what joins the same groups one net."""

from __future__ import annotations

import pytest

from tests.support.examples import for_all
from tests.support.placements import chain, every_placement, graph, problems
from weft.solver.placement.groups import Net, contract, divided, groups_of, heaviest, nodes_of, parts_of
from weft.solver.placement.problem import Node, PlacementProblem, PlacementTensor


def test_backward_operators_ride_on_their_forward_twins() -> None:
    nodes = [Node("a", (1,), colocation=0), Node("b", (1,), colocation=1),
             Node("b'", (2,), colocation=1, backward=True), Node("a'", (2,), colocation=0, backward=True)]
    problem = graph(nodes, [PlacementTensor(0, (1,), 1), PlacementTensor(1, (2,), 0), PlacementTensor(2, (3,), 1)])
    assert problem.order == ((0, 1),)
    groups = groups_of(problem)
    assert groups.members == ((0, 3), (1, 2))
    assert groups.nets == (Net((0, 1), 2.0),)  # the activation and its gradient are one net


def test_classes_that_wait_for_each_other_are_one_group() -> None:
    nodes = [Node("a", (1,), colocation=0), Node("b", (1,)), Node("c", (1,), colocation=0)]
    problem = graph(nodes, [PlacementTensor(0, (1,), 0), PlacementTensor(1, (2,), 0)])
    assert groups_of(problem).members == ((0, 1, 2),)


@for_all(problems(), tries=40)
def test_loads_are_the_judges_and_nodes_come_back(problem: PlacementProblem) -> None:
    groups = groups_of(problem)
    for stages, _ in zip(every_placement(problem), range(20), strict=False):
        division = divided(groups, parts_of(stages))
        assert division is not None
        loads = [stage.load for stage in stages]
        assert division.value == pytest.approx(max(loads))
        assert loads[heaviest(groups, division)] == pytest.approx(max(loads))
        assert [(kind, tuple(sorted(nodes))) for kind, nodes in nodes_of(groups, division)] == parts_of(stages)


def test_stages_that_take_a_group_apart_are_none_of_its_graph() -> None:
    whole = groups_of(chain([1, 2, 3]))
    joined = contract(whole, [0, 0, 2])
    assert divided(joined, [(0, (0,)), (0, (1, 2))]) is None
    assert divided(joined, [(0, (0, 1)), (0, (2,))]) is not None
