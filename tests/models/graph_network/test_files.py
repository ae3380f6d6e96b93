from pathlib import Path
from typing import Any

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
    ("g.txt", "0 99999999999999999999\n", "it must hold two whole numbers, of up to 10 digits"),
    ("g.txt", "0 \u00b2\n", "it must hold two whole numbers"),
    ("g.txt", "0 9999999999\n", "has 10000000000 vertices, it must have from 1 to 1000000000"),
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


EDGES = {"source": np.array([0, 1]), "target": np.array([1, 0])}


@pytest.mark.parametrize(("arrays", "said"), [
    ({"target": EDGES["target"]}, "has no array 'source', but target"),
    ({**EDGES, "vertices": 1}, "edge 1 has the source 1, it must be one of the vertices 0 to 0"),
    ({**EDGES, "vertices": np.array([2, 2])}, "vertices is no whole number"),
    ({**EDGES, "source": np.array([0.0, 1.0])}, "source holds float64"),
    ({**EDGES, "source": np.array([0])}, "must be one of each"),
    ({**EDGES, "features": np.array([["a"], ["b"]])}, "features hold <U1"),
    ({**EDGES, "label": np.array([0.5, 1.0])}, "labels are float64"),
    ({**EDGES, "feature_indptr": np.array([0, 2, 1])}, "but no array 'feature_indices'"),
    ({**EDGES, "feature_indptr": np.array([0, 2, 1]), "feature_indices": np.array([0]),
      "feature_values": np.array([1.0]), "features": 3}, "are no sparse matrix of 2 rows"),
])
def test_what_is_no_archive_of_a_graph_is_said(tmp_path: Path, arrays: dict[str, Any], said: str) -> None:
    np.savez(tmp_path / "g.npz", **arrays)
    with pytest.raises(GraphError, match=said):
        load_graph(tmp_path / "g.npz")
