"""Interchangeable groups are put in an order."""

from __future__ import annotations

from tests.support.placements import graph
from weft.solver.placement.groups import groups_of
from weft.solver.placement.problem import Node, PlacementTensor
from weft.solver.placement.reductions.interchangeable import order_twins


def test_interchangeable_branches_are_put_in_order() -> None:
    nodes = [Node("in", (1,)), Node("x", (3,)), Node("y", (3,)), Node("z", (4,)), Node("out", (1,))]
    tensors = [PlacementTensor(0, (1, 2, 3), 1), *(PlacementTensor(i, (4,), 1) for i in (1, 2, 3))]
    groups = order_twins(groups_of(graph(nodes, tensors)))
    assert (1, 2) in groups.order and not {(1, 3), (3, 1)} & set(groups.order)
