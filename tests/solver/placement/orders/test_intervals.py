"""What cuts an interval of an order, against the nets one by one."""

from __future__ import annotations

import random

import pytest

from tests.support.placements import graph
from weft.solver.placement.groups import groups_of
from weft.solver.placement.orders.depth_first import depth_first_order
from weft.solver.placement.orders.intervals import interval_transfers
from weft.solver.placement.problem import Node, Tensor


def test_interval_transfers_are_those_of_the_nets_cut() -> None:
    chance = random.Random(2)
    nodes = [Node(f"n{i}", (1.0,)) for i in range(9)]
    tensors = [Tensor(i, tuple(chance.sample(range(i + 1, 9), min(8 - i, 2))), float(i + 1)) for i in range(8)]
    groups = groups_of(graph(nodes, tensors))
    order = depth_first_order(groups, chance)
    table = interval_transfers(groups, order)
    for i in range(9):
        for j in range(i + 1, 10):
            inside = set(order[i:j])
            cut = [net.cost for net in groups.nets if inside & set(net.groups) and not set(net.groups) <= inside]
            assert table[i, j] == pytest.approx(sum(cut))
