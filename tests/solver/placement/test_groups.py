"""What shares a stage is one group, what joins the same groups one net."""

from __future__ import annotations

from tests.support.placements import graph
from weft.solver.placement.groups import Net, groups_of
from weft.solver.placement.problem import Node, Tensor


def test_backward_operators_ride_on_their_forward_twins() -> None:
    nodes = [Node("a", (1,), colocation=0), Node("b", (1,), colocation=1),
             Node("b'", (2,), colocation=1, backward=True), Node("a'", (2,), colocation=0, backward=True)]
    problem = graph(nodes, [Tensor(0, (1,), 1), Tensor(1, (2,), 0), Tensor(2, (3,), 1)])
    assert problem.order == ((0, 1),)
    groups = groups_of(problem)
    assert groups.members == ((0, 3), (1, 2))
    assert groups.nets == (Net((0, 1), 2.0),)  # the activation and its gradient are one net


def test_classes_that_wait_for_each_other_are_one_group() -> None:
    nodes = [Node("a", (1,), colocation=0), Node("b", (1,)), Node("c", (1,), colocation=0)]
    problem = graph(nodes, [Tensor(0, (1,), 0), Tensor(1, (2,), 0)])
    assert groups_of(problem).members == ((0, 1, 2),)
