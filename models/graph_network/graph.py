"""A directed graph with features and labels of its vertices, and graphs that are drawn.

Edges lead from ``source`` to ``target``; self-loops, duplicates and vertices without edges are allowed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "Graph", "GraphError", "drawn_graph"]

Array = npt.NDArray[Any]

#: Rows of features that are checked at once: a memory-mapped file is never read whole.
_ROWS = 65536
#: Degrees of a power-law graph fall as rank to this power (that of the web's in-degrees: 1 / (2.1 - 1)).
_SKEW = 0.9


class GraphError(ValueError):
    """What is no graph: one sentence with what is wrong and what is allowed."""


@dataclass(frozen=True, eq=False)
class Graph:
    """``vertices`` vertices and the edges ``source[k]`` to ``target[k]``.

    ``features``: a row a vertex, in memory or a memory-mapped file; None where there are none. ``labels``: a class a
    vertex, -1 where it has none. Raises :class:`GraphError` for a vertex out of range, features that are not finite,
    and arrays of other lengths.
    """

    name: str
    vertices: int
    source: Array
    target: Array
    features: Array | None = None
    labels: Array | None = None

    def __post_init__(self) -> None:
        if self.vertices < 1:
            raise GraphError(f"{self.name}: has {self.vertices} vertices, it must have at least one")
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
            for first in range(0, self.vertices, _ROWS):
                wrong = np.argwhere(~np.isfinite(self.features[first:first + _ROWS]))
                if wrong.size:
                    row, column = wrong[0] + (first, 0)
                    raise GraphError(f"{self.name}: feature {column} of vertex {row} is "
                                     f"{self.features[row, column]}, it must be finite")
        if self.labels is not None and self.labels.shape != (self.vertices,):
            raise GraphError(f"{self.name}: labels have the shape {self.labels.shape}, there must be one for each of "
                             f"the {self.vertices} vertices")

    @property
    def edges(self) -> int:
        """How many edges there are."""
        return len(self.source)

    @property
    def in_degree(self) -> Array:
        """Per vertex, the edges that lead to it."""
        return np.bincount(self.target, minlength=self.vertices)

    def with_loops(self) -> Graph:
        """The same with exactly one self-loop at every vertex, behind the other edges."""
        kept, every = self.source != self.target, np.arange(self.vertices, dtype=self.source.dtype)
        return replace(self, source=np.concatenate([self.source[kept], every]),
                       target=np.concatenate([self.target[kept], every]))


def drawn_graph(vertices: int, edges: int, *, skewed: bool = False, features: int = 0, classes: int = 0,
                seed: int = 0) -> Graph:
    """A graph whose edges have random ends: all alike or, ``skewed``, with degrees by a power law. ``features``: normal
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
