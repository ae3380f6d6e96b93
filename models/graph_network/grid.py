"""Vertices in P chunks, edges in P x P: chunk (i, j) has the edges from vertex chunk i to vertex chunk j.

Vertex chunks are as long as each other, to one vertex. A chunk's edges stand together, by column, then row, then
target, with indices that count from the beginning of their vertex chunks.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from weft.models.graph_network.graph import Array, Graph

__all__ = ["Grid"]


class Grid:
    """``graph`` in ``chunks`` x ``chunks`` chunks."""

    def __init__(self, graph: Graph, chunks: int) -> None:
        if not 1 <= chunks <= graph.vertices:
            raise ValueError(f"chunks is {chunks}, it must be from 1 to the number of vertices, {graph.vertices}")
        self.graph, self.chunks = graph, chunks
        #: Where vertex chunks begin, and the end of the last.
        self.begins = np.array([graph.vertices * k // chunks for k in range(chunks + 1)])
        row = np.searchsorted(self.begins, graph.source, "right") - 1
        column = np.searchsorted(self.begins, graph.target, "right") - 1
        place = column * chunks + row
        order = np.lexsort((graph.target, place))
        self.source = (graph.source - self.begins[row])[order].astype(np.int32)
        self.target = (graph.target - self.begins[column])[order].astype(np.int32)
        #: Where chunk (i, j) begins, at j * chunks + i, and the end of the last.
        self.edge_begins = np.concatenate([[0], np.cumsum(np.bincount(place, minlength=chunks * chunks))])

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """Vertices of each chunk."""
        return tuple(int(size) for size in np.diff(self.begins))

    def span(self, i: int, j: int) -> slice:
        """The places of the edges of chunk (i, j)."""
        at = j * self.chunks + i
        return slice(int(self.edge_begins[at]), int(self.edge_begins[at + 1]))

    def edges(self, i: int, j: int) -> int:
        """How many edges chunk (i, j) has."""
        span = self.span(i, j)
        return int(span.stop) - int(span.start)

    @cached_property
    def used(self) -> Array:
        """Per chunk (i, j), at [i, j], how many vertices of chunk i have an edge in it."""
        return np.array([[len(np.unique(self.source[self.span(i, j)])) for j in range(self.chunks)]
                         for i in range(self.chunks)])

    def owners(self, ranks: int) -> tuple[int, ...]:
        """The rank of each vertex chunk, its column and its row: heaviest first to whoever has least, counted in edges
        in and out and in vertices."""
        weight = [sum(self.edges(i, k) + self.edges(k, i) for i in range(self.chunks)) + self.rows[k]
                  for k in range(self.chunks)]
        load, found = [0] * ranks, [0] * self.chunks
        for k in sorted(range(self.chunks), key=lambda k: (-weight[k], k)):
            rank = min(range(ranks), key=lambda r: (load[r], r))
            found[k] = rank
            load[rank] += weight[k]
        return tuple(found)
