from pathlib import Path

import numpy as np
import pytest

from weft.models.graph_network.files import load_graph
from weft.models.graph_network.graph import GraphError


def test_the_three_kinds_of_files_hold_one_graph(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", source=np.array([0, 2]), target=np.array([1, 1]), vertices=3)
    (tmp_path / "g.txt").write_text("# source target\n0 1\n2,1,0.5\n")
    (tmp_path / "g.mtx").write_text("%%MatrixMarket matrix coordinate real general\n% remark\n3 3 2\n2 1 1.0\n2 3 4\n")
    for name in ("g.npz", "g.txt", "g.mtx"):
        graph = load_graph(tmp_path / name)
        assert (graph.vertices, graph.source.tolist(), graph.target.tolist()) == (3, [0, 2], [1, 1])


def test_a_symmetric_matrix_has_both_directions(tmp_path: Path) -> None:
    (tmp_path / "g.mtx").write_text("%%MatrixMarket matrix coordinate pattern symmetric\n3 3 2\n2 1\n3 3\n")
    graph = load_graph(tmp_path / "g.mtx")
    assert sorted(zip(graph.source.tolist(), graph.target.tolist(), strict=True)) == [(0, 1), (1, 0), (2, 2)]


def test_features_are_mapped_and_sparse_ones_filled_in(tmp_path: Path) -> None:
    (tmp_path / "g.txt").write_text("0 1\n")
    np.save(tmp_path / "x.npy", np.ones((4, 2), np.float32))
    graph = load_graph(tmp_path / "g.txt", tmp_path / "x.npy")
    assert graph.vertices == 4 and isinstance(graph.features, np.memmap)
    np.savez(tmp_path / "g.npz", source=np.array([0]), target=np.array([1]), feature_indptr=np.array([0, 1, 1]),
             feature_indices=np.array([2]), feature_values=np.array([5.0]), features=3)
    found = load_graph(tmp_path / "g.npz").features
    assert found is not None and found.tolist() == [[0, 0, 5], [0, 0, 0]]


@pytest.mark.parametrize(("name", "text", "said"), [
    ("g.txt", "0 1\n1 x\n", "line 2 is '1 x', it must hold two whole numbers"),
    ("g.txt", "# none\n", "has no edges"),
    ("g.txt", "0 -1\n", "edge 0 has the target -1"),
    ("g.mtx", "hello\n", "line 1 is no header"),
    ("g.mtx", "%%MatrixMarket matrix coordinate real general\n3 3 2\n1 1\n", "says 2 entries, but has 1"),
    ("g.mtx", "%%MatrixMarket matrix coordinate real general\n3 3 1\n4 1\n", "edge 0 has the target 3"),
    ("g.npz", "no archive", "is no .npz archive"),
])
def test_what_is_no_graph_is_said(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(GraphError, match=said.replace("(", "\\(")):
        load_graph(tmp_path / name)


def test_features_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    (tmp_path / "g.txt").write_text("0 1\n")
    np.save(tmp_path / "x.npy", np.array([[0.0, 1.0], [np.nan, 0.0]]))
    with pytest.raises(GraphError, match="feature 0 of vertex 1 is nan, it must be finite"):
        load_graph(tmp_path / "g.txt", tmp_path / "x.npy")
