"""The parts of a graph, against networkx."""

from __future__ import annotations

import random

import networkx as nx

from weft.solver.relations.graph import joined


def test_groups_with_common_members_are_joined() -> None:
    for draw in map(random.Random, range(20)):
        groups = [draw.choices(range(12), k=draw.randint(0, 3)) for _ in range(draw.randint(0, 12))]
        assert joined(groups) == [*nx.connected_components(nx.compose_all([nx.Graph(), *map(nx.path_graph, groups)]))]
