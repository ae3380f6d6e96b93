"""Groups that are never better apart are joined."""

from __future__ import annotations

from tests.support.placements import graph
from weft.solver.placement import DeviceKind, Node, PlacementTensor, place
from weft.solver.placement.groups import groups_of
from weft.solver.placement.reductions.fold import fold


def test_weights_and_dear_outputs_are_folded_into_their_readers() -> None:
    nodes = [Node("weight", (0,)), Node("a", (2,)), Node("wide", (1,)), Node("b", (2,))]
    tensors = [PlacementTensor(0, (1,), 4), PlacementTensor(1, (2,), 1), PlacementTensor(2, (3,), 9)]
    assert fold(groups_of(graph(nodes, tensors))).members == ((0, 1), (2, 3))


def test_a_weight_that_memory_may_push_elsewhere_is_not_folded() -> None:
    nodes = [Node("weight", (0,), 6), Node("a", (2,), 6)]
    problem = graph(nodes, [PlacementTensor(0, (1,), 1)], DeviceKind("gpu", 2, 10))
    assert fold(groups_of(problem)).count == 2
    assert place(problem).objective == 3
