"""A directed graph with features and labels of its vertices, and random graphs.

Edges lead from ``source`` to ``target``; self-loops, duplicates and vertices without edges are allowed.

Vertices in P chunks, edges in P x P: chunk (i, j) has the edges from vertex chunk i to vertex chunk j.

Vertex chunks are equally long, to one vertex. A chunk's edges are contiguous, by column, then row, then target, with
indices relative to their vertex chunks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: Maximum vertices, and edges of a random graph: indices have 4 bytes.
MOST = 10**9
#: Rows of features checked at once: a memory-mapped file is never read whole.
_ROWS = 65536
#: Degrees of a power-law graph fall as rank to this power (that of the web's in-degrees: 1 / (2.1 - 1)).
_SKEW = 0.9


class GraphError(ValueError):
    """An invalid graph: one sentence with the error and the allowed values."""


@dataclass(frozen=True, eq=False)
class Graph:
    """``vertices`` vertices and the edges ``source[k]`` to ``target[k]``.

    ``features``: a row a vertex, in memory or a memory-mapped file; None if there are none. ``labels``: a class a
    vertex, -1 for none. Raises :class:`GraphError` for a vertex out of range, non-finite features, and arrays of other
    lengths.
    """

    name: str
    vertices: int
    source: Array
    target: Array
    features: Array | None = None
    labels: Array | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.vertices <= MOST:
            raise GraphError(f"{self.name}: has {self.vertices} vertices, it must have from 1 to {MOST}")
        if self.source.shape != self.target.shape or self.source.ndim != 1:
            raise GraphError(f"{self.name}: {self.source.shape} sources and {self.target.shape} targets, there must be "
                             "one of each for every edge")
        for label, ends in (("source", self.source), ("target", self.target)):
            if not np.issubdtype(ends.dtype, np.integer):
                raise GraphError(f"{self.name}: {label} holds {ends.dtype}, it must hold whole numbers")
            wrong = np.flatnonzero((ends < 0) | (ends >= self.vertices))
            if wrong.size:
                raise GraphError(f"{self.name}: edge {wrong[0]} has the {label} {ends[wrong[0]]}, it must be one of "
                                 f"the vertices 0 to {self.vertices - 1}")
        self._check_rows()

    def _check_rows(self) -> None:
        if self.features is not None:
            if self.features.ndim != 2 or len(self.features) != self.vertices:
                raise GraphError(f"{self.name}: features have the shape {self.features.shape}, there must be one row "
                                 f"for each of the {self.vertices} vertices")
            if not np.issubdtype(self.features.dtype, np.number):
                raise GraphError(f"{self.name}: features hold {self.features.dtype}, they must be numbers")
            for first in range(0, self.vertices, _ROWS):
                wrong = np.argwhere(~np.isfinite(self.features[first:first + _ROWS]))
                if wrong.size:
                    row, column = wrong[0] + (first, 0)
                    raise GraphError(f"{self.name}: feature {column} of vertex {row} is "
                                     f"{self.features[row, column]}, it must be finite")
        if self.labels is not None and (self.labels.shape != (self.vertices,)
                                        or not np.issubdtype(self.labels.dtype, np.integer)):
            raise GraphError(f"{self.name}: labels are {self.labels.dtype} of the shape {self.labels.shape}, there "
                             f"must be a whole number for each of the {self.vertices} vertices")

    @property
    def edges(self) -> int:
        """How many edges there are."""
        return len(self.source)

    def with_loops(self) -> Graph:
        """The same with exactly one self-loop at every vertex, after the other edges."""
        kept, every = self.source != self.target, np.arange(self.vertices, dtype=self.source.dtype)
        return replace(self, source=np.concatenate([self.source[kept], every]),
                       target=np.concatenate([self.target[kept], every]))


def drawn_graph(vertices: int, edges: int, *, skewed: bool = False, features: int = 0, classes: int = 0,
                seed: int = 0) -> Graph:
    """A graph whose edges have random ends: uniform or, ``skewed``, with degrees by a power law. ``features``: normal
    ones; ``classes``: labels in their range."""
    draw = np.random.default_rng(seed)
    if skewed:
        weight = np.arange(1, vertices + 1) ** -_SKEW
        ends = np.searchsorted(np.cumsum(weight) / weight.sum(), draw.random((2, edges))).clip(0, vertices - 1)
        ends = draw.permutation(vertices)[ends]
    else:
        ends = draw.integers(0, vertices, (2, edges))
    kind = "power-law" if skewed else "random"
    return Graph(f"{kind} graph of {vertices} vertices and {edges} edges", vertices, ends[0].astype(np.int32),
                 ends[1].astype(np.int32),
                 draw.standard_normal((vertices, features), dtype=np.float32) if features else None,
                 draw.integers(0, classes, vertices) if classes else None)


class ChunkGrid:
    """``graph`` in ``chunks`` x ``chunks`` chunks."""

    def __init__(self, graph: Graph, chunks: int) -> None:
        if not 1 <= chunks <= graph.vertices:
            raise ValueError(f"chunks is {chunks}, it must be from 1 to the number of vertices, {graph.vertices}")
        self.graph, self.chunks = graph, chunks
        #: The starts of vertex chunks, and the end of the last.
        self.begins = np.array([graph.vertices * k // chunks for k in range(chunks + 1)])
        row = np.searchsorted(self.begins, graph.source, "right") - 1
        column = np.searchsorted(self.begins, graph.target, "right") - 1
        place = column * chunks + row
        order = np.lexsort((graph.target, place))
        self.source = (graph.source - self.begins[row])[order].astype(np.int32)
        self.target = (graph.target - self.begins[column])[order].astype(np.int32)
        #: The start of chunk (i, j), at j * chunks + i, and the end of the last.
        self.edge_begins = np.concatenate([[0], np.cumsum(np.bincount(place, minlength=chunks * chunks))])

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """Vertices of each chunk."""
        return tuple(int(size) for size in np.diff(self.begins))

    def span(self, i: int, j: int) -> slice:
        """The positions of the edges of chunk (i, j)."""
        at = j * self.chunks + i
        return slice(int(self.edge_begins[at]), int(self.edge_begins[at + 1]))

    def edges(self, i: int, j: int) -> int:
        """The number of edges in chunk (i, j)."""
        span = self.span(i, j)
        return int(span.stop) - int(span.start)

    @cached_property
    def used(self) -> Array:
        """Per chunk (i, j), at [i, j], the number of vertices of chunk i with an edge in it."""
        return np.array([[len(np.unique(self.source[self.span(i, j)])) for j in range(self.chunks)]
                         for i in range(self.chunks)])

    def owners(self, ranks: int) -> tuple[int, ...]:
        """The rank of each vertex chunk, its column and its row: heaviest first to the rank with the least load,
        counted in edges in and out and in vertices."""
        weight = [sum(self.edges(i, k) + self.edges(k, i) for i in range(self.chunks)) + self.rows[k]
                  for k in range(self.chunks)]
        load, found = [0] * ranks, [0] * self.chunks
        for k in sorted(range(self.chunks), key=lambda k: (-weight[k], k)):
            rank = min(range(ranks), key=lambda r: (load[r], r))
            found[k] = rank
            load[rank] += weight[k]
        return tuple(found)
