import numpy as np
import pytest

from tests.support.graph_networks import odd_graph
from weft.models.graph_network.graph import ChunkGrid


@pytest.mark.parametrize("chunks", [1, 3, 8, 40])
def test_chunks_hold_every_edge_once(chunks: int) -> None:
    graph = odd_graph()
    grid = ChunkGrid(graph, chunks)
    found: list[tuple[int, int]] = []
    for j in range(chunks):
        for i in range(chunks):
            span = grid.span(i, j)
            source, target = grid.source[span], grid.target[span]
            assert (source < grid.rows[i]).all() and (target < grid.rows[j]).all() and (np.diff(target) >= 0).all()
            found += zip((source + grid.begins[i]).tolist(), (target + grid.begins[j]).tolist(), strict=True)
            assert grid.used[i, j] == len(set(source.tolist()))
    assert sorted(found) == sorted(zip(graph.source.tolist(), graph.target.tolist(), strict=True))


def test_owners_share_the_chunks() -> None:
    assert set(ChunkGrid(odd_graph(), 5).owners(3)) == {0, 1, 2}
