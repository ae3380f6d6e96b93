"""Graphs from files: NumPy's archives, lists of edges, MatrixMarket.

* ``.npz``: arrays ``source`` and ``target``; ``vertices``, their number (default: the largest index and one);
  ``label``; features dense in ``features``, or as a sparse matrix by rows in ``feature_indptr``, ``feature_indices``
  and ``feature_values`` with ``features``, the number of columns. No pickles.
* ``.mtx``: a MatrixMarket coordinate matrix. An entry in row i and column j is the edge from j - 1 to i - 1, so that
  the matrix times features sums over sources; ``symmetric`` has both directions. Values are ignored.
* any other ending: an edge a line, its source and target separated by spaces, tabs or a comma, counted from 0. A line
  that begins with ``#`` or ``%`` is a comment; anything after two numbers is ignored.

``features``: the path of an ``.npy`` file with a row a vertex, which is memory-mapped and never read whole.
"""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path

import numpy as np

from weft.models.graph_network.graph import Array, Graph, GraphError

#: A vertex in text, or the number of vertices.
_WHOLE = re.compile("-?[0-9]{1,10}")


def load_graph(path: str | os.PathLike[str], features: str | os.PathLike[str] | None = None) -> Graph:
    """The graph in the file ``path``, with the features in the ``.npy`` file ``features``, if one is named. Raises
    :class:`~weft.models.graph_network.graph.GraphError` for an invalid graph."""
    where = Path(path)
    if not where.is_file():
        raise GraphError(f"{path}: there is no such file; name a graph (.npz, .mtx or a list of edges)")
    mapped = None if features is None else _mapped(features)
    reader = {".npz": _archive, ".mtx": _matrix}.get(where.suffix.lower(), _edges)
    vertices, source, target, own, labels = reader(where)
    if mapped is not None:
        vertices = max(vertices, len(mapped))
    return Graph(where.name, vertices, source, target, own if mapped is None else mapped, labels)


_Parts = tuple[int, Array, Array, Array | None, Array | None]


def _mapped(path: str | os.PathLike[str]) -> Array:
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise GraphError(f"{path}: is no .npy file with features ({error})") from None
    if not isinstance(found, np.ndarray):
        raise GraphError(f"{path}: holds several arrays, features are one .npy array with a row a vertex")
    return found


def _archive(path: Path) -> _Parts:
    try:
        with np.load(path, allow_pickle=False) as archive:
            held = {name: archive[name] for name in archive}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise GraphError(f"{path}: is no .npz archive of plain arrays ({error})") from None
    for name in ("source", "target"):
        if name not in held:
            raise GraphError(f"{path}: has no array {name!r}, but {', '.join(sorted(held)) or 'none'}; edges are "
                             "source and target")
    source, target = held["source"], held["target"]
    for name in ("vertices", "features"):
        if name in held and ((held[name].ndim == 0 and not np.issubdtype(held[name].dtype, np.integer))
                             or (held[name].ndim and name == "vertices")):
            raise GraphError(f"{path}: {name} is no whole number")
    vertices = int(held["vertices"]) if "vertices" in held else _count(source, target)
    return vertices, source, target, _features(path, held, vertices), held.get("label")


def _features(path: Path, held: dict[str, Array], vertices: int) -> Array | None:
    if "feature_indptr" not in held:
        found = held.get("features")
        return None if found is None or found.ndim == 0 else found
    names = ("feature_indptr", "feature_indices", "feature_values", "features")
    if missing := [name for name in names if name not in held]:
        raise GraphError(f"{path}: has sparse features, but no array {missing[0]!r}")
    begins, columns, values, width = (held[name] for name in names)
    rising = begins.ndim == columns.ndim == values.ndim == 1 and len(begins) > 0 and (np.diff(begins) >= 0).all()
    rows = np.repeat(np.arange(len(begins) - 1), np.diff(begins)) if rising else columns[:0]
    if not rising or width.ndim or len(begins) != vertices + 1 or not len(rows) == len(columns) == len(values) or (
            len(columns) and not 0 <= columns.min() <= columns.max() < int(width)):
        raise GraphError(f"{path}: feature_indptr, feature_indices and feature_values are no sparse matrix of "
                         f"{vertices} rows and as many columns as features says")
    dense = np.zeros((vertices, int(width)), values.dtype)
    dense[rows, columns] = values
    return dense


def _matrix(path: Path) -> _Parts:
    with path.open(encoding="utf-8", errors="replace") as file:
        header = file.readline().lower().split()
        if header[:3] != ["%%matrixmarket", "matrix", "coordinate"] or len(header) < 5:
            raise GraphError(f"{path}: line 1 is no header of a MatrixMarket coordinate matrix "
                             "(%%MatrixMarket matrix coordinate FIELD SYMMETRY)")
        line, number = "%", 1
        while line.startswith("%") or (line and not line.strip()):
            line, number = file.readline(), number + 1
        sizes = line.split()
        if len(sizes) != 3 or not all(_WHOLE.fullmatch(size) for size in sizes):
            raise GraphError(f"{path}: line {number} is {line.strip()[:60]!r}, it must say rows, columns and entries")
        rows, columns, entries = map(int, sizes)
        target, source = _pairs(path, file.read().splitlines(), number)
    if len(source) != entries:
        raise GraphError(f"{path}: says {entries} entries, but has {len(source)}")
    target, source = target - 1, source - 1
    if header[4] != "general":
        off = source != target
        source, target = np.concatenate([source, target[off]]), np.concatenate([target, source[off]])
    return max(rows, columns), source, target, None, None


def _edges(path: Path) -> _Parts:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise GraphError(f"{path}: is no graph: neither .npz, nor .mtx, nor text with an edge a line") from None
    source, target = _pairs(path, text.splitlines(), 0)
    if not len(source):
        raise GraphError(f"{path}: has no edges; a line holds the source and the target of one")
    return _count(source, target), source, target, None, None


def _pairs(path: Path, lines: list[str], before: int) -> tuple[Array, Array]:
    """The first two whole numbers of each line; ``before``: the lines of the file before these."""
    found = []
    for number, line in enumerate(lines, before + 1):
        words = line.replace(",", " ").split()
        if not words or words[0][0] in "#%":
            continue
        if len(words) < 2 or not all(_WHOLE.fullmatch(word) for word in words[:2]):
            raise GraphError(f"{path}: line {number} is {line.strip()[:60]!r}, it must hold two whole numbers, of up "
                             "to 10 digits")
        found.append((int(words[0]), int(words[1])))
    pairs = np.array(found, np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _count(source: Array, target: Array) -> int:
    return int(max(source.max(initial=0), target.max(initial=0))) + 1
