"""Coarse graphs stay below their cap and have no cycle."""

from __future__ import annotations

import random

from tests.support.placements import graph
from weft.solver.placement.groups import groups_of
from weft.solver.placement.problem import Node, PlacementTensor
from weft.solver.placement.reductions.coarsen import coarsen


def test_coarsening_stays_below_its_cap_and_has_no_cycle() -> None:
    chance = random.Random(1)
    nodes = [Node(f"n{i}", (1.0,)) for i in range(300)]
    tensors = [PlacementTensor(i, tuple({min(299, i + chance.randint(1, 4)) for _ in range(2)}), chance.random())
               for i in range(299)]
    coarse = coarsen(groups_of(graph(nodes, tensors)), 60, 2)
    assert 60 <= coarse.count < 300
    assert coarse.times.max() <= 300 / (2 * 20)
    assert all(a < b for a, b in coarse.order)
