"""Coarse graphs stay below their cap and have no cycle."""

from __future__ import annotations

import random

from weft.solver.placement.groups import groups_of
from weft.solver.placement.problem import DeviceKind, Node, PlacementProblem, Tensor
from weft.solver.placement.reductions.coarsen import coarsen

GPU = DeviceKind("gpu", 2)


def graph(nodes: list[Node], tensors: list[Tensor], *kinds: DeviceKind) -> PlacementProblem:
    return PlacementProblem("graph", kinds or (GPU,), tuple(nodes), tuple(tensors))


def test_coarsening_stays_below_its_cap_and_has_no_cycle() -> None:
    chance = random.Random(1)
    nodes = [Node(f"n{i}", (1.0,)) for i in range(300)]
    tensors = [Tensor(i, tuple({min(299, i + chance.randint(1, 4)) for _ in range(2)}), chance.random())
               for i in range(299)]
    coarse = coarsen(groups_of(graph(nodes, tensors)), 60, 2)
    assert 60 <= coarse.count < 300
    assert coarse.times.max() <= 300 / (2 * 20)
    assert all(a < b for a, b in coarse.order)
