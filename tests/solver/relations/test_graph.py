"""The parts of a graph, against networkx."""

from __future__ import annotations

import random

import networkx as nx
import pytest

from weft.solver.relations.graph import joined


@pytest.mark.parametrize("seed", range(20))
def test_groups_with_common_members_are_joined(seed: int) -> None:
    draw = random.Random(seed)
    groups = [draw.choices(range(12), k=draw.randint(0, 3)) for _ in range(draw.randint(0, 12))]
    graph: nx.Graph[int] = nx.Graph()
    for group in groups:
        nx.add_path(graph, group)
    assert joined(groups) == [*nx.connected_components(graph)]
