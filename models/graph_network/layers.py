"""The predefined layers by name, with closed forms of their stages' FLOPs and bytes.

A layer is SAGA (NGra, arXiv 1810.08403): *Scatter* brings vertices' values to edges, *ApplyEdge* computes on edges,
*Gather* accumulates at targets, *ApplyVertex* computes on vertices; work that ApplyEdge would repeat for every edge of
a vertex is part of ApplyVertex, done once before Scatter. With V vertices, E edges (with self-loops if the layer has
them), widths I and O, and H heads:

* FLOPs: a product of matrices m x k and k x n has 2mkn; an operation element by element, and an accumulation, one an
  element; copies, selections and fills have none.
* Bytes: every operation reads its inputs and writes its output once. Selected rows are read once per selection; an
  accumulation reads its addends, and reads and writes its targets. Indices have 4 bytes.

The runtime's layers are counted the same way, operation by operation, and give these numbers exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Kind: TypeAlias = Literal["gcn", "sage-mean", "sage-pool", "gat", "gated-gcn"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Stage: TypeAlias = Literal["scatter", "apply_edge", "gather", "apply_vertex"]
STAGES: tuple[Stage, ...] = get_args(Stage)
#: Bytes of an index.
_INDEX = 4


@dataclass(frozen=True)
class WorkCounts:
    """Operations and bytes moved."""

    flops: int = 0
    bytes: int = 0

    def __add__(self, other: WorkCounts) -> WorkCounts:
        return WorkCounts(self.flops + other.flops, self.bytes + other.bytes)

    def __mul__(self, times: int) -> WorkCounts:
        return WorkCounts(self.flops * times, self.bytes * times)

    @property
    def intensity(self) -> float:
        """FLOPs a byte."""
        return self.flops / self.bytes if self.bytes else 0.0


@dataclass(frozen=True)
class LayerShape:
    """A predefined layer with its widths; ``heads`` of ``gat`` divide its ``outputs``."""

    kind: Kind
    inputs: int
    outputs: int
    heads: int = 1

    @property
    def loops(self) -> bool:
        """Whether every vertex has exactly one self-loop in this layer."""
        return self.kind in ("gcn", "gat")

    @property
    def fuses(self) -> bool:
        """Whether Scatter, ApplyEdge and Gather are one sparse product: messages are the sources' values, summed."""
        return self.kind in ("gcn", "sage-mean")

    @property
    def parameters(self) -> int:
        """How many it has."""
        i, o = self.inputs, self.outputs
        return {"gcn": i * o + o, "sage-mean": 2 * i * o + o, "sage-pool": i * i + i + 2 * i * o + o,
                "gat": i * o + 3 * o, "gated-gcn": 4 * (i * o + o)}[self.kind]

    def counts(self, vertices: int, edges: int, itemsize: int = 4) -> Mapping[Stage, WorkCounts]:
        """Of a forward over ``vertices`` and ``edges``, unfused, on elements of ``itemsize`` bytes."""
        one = _LayerCounting(self, vertices, edges, itemsize)
        return {"scatter": one.scatter(), "apply_edge": one.apply_edge(), "gather": one.gather(),
                "apply_vertex": one.apply_vertex()}

    def fused(self, vertices: int, edges: int, itemsize: int = 4) -> WorkCounts:
        """Of scatter and gather as one sparse product, if the layer :attr:`fuses`."""
        one = _LayerCounting(self, vertices, edges, itemsize)
        product = WorkCounts(2 * edges * self.outputs, _INDEX * (vertices + 1 + edges) + itemsize * (
            2 * edges + 2 * self.outputs * vertices))  # the matrix's ones are written and read
        return product + one.wise(self.outputs * vertices, 2) + one.closing()


class _LayerCounting:
    """The counts of one layer on one graph."""

    def __init__(self, shape: LayerShape, vertices: int, edges: int, itemsize: int) -> None:
        self.kind, self.i, self.o, self.h = shape.kind, shape.inputs, shape.outputs, shape.heads
        self.v, self.e, self.s = vertices, edges, itemsize

    def scatter(self) -> WorkCounts:
        source, target = {"gcn": (self.o, 0), "sage-mean": (self.o, 0), "sage-pool": (self.i, 0),
                          "gat": (self.o + self.h, self.h), "gated-gcn": (2 * self.o, self.o)}[self.kind]
        return self._selected(source) + (self._selected(target) if target else WorkCounts())

    def apply_edge(self) -> WorkCounts:
        if self.kind == "gat":  # add, leaky ReLU
            return self.wise(self.e * self.h, 2) + self.wise(self.e * self.h, 1)
        if self.kind == "gated-gcn":  # add, sigmoid, multiply
            wide = self.e * self.o
            return self.wise(wide, 2) + self.wise(wide, 1) + self.wise(wide, 2)
        return WorkCounts()

    def gather(self) -> WorkCounts:
        if self.kind == "gat":
            return self._softmax() + self.closing()
        return self._added(self.i if self.kind == "sage-pool" else self.o) + self.closing()

    def closing(self) -> WorkCounts:
        """The closing work on a finished accumulator."""
        if self.kind == "sage-mean":  # at least 1, divide
            return self.wise(self.v, 1) + WorkCounts(self.v * self.o, self.s * self.v * (2 * self.o + 1))
        if self.kind == "sage-pool":  # 0 for vertices without edges: compare, fill
            wide = self.v * self.i
            return WorkCounts(wide, wide * (self.s + 1)) + WorkCounts(0, wide * (2 * self.s + 1))
        if self.kind == "gat":  # a denominator of 1 for vertices without edges; divide
            narrow = self.v * self.h
            return (WorkCounts(narrow, narrow * (self.s + 1)) + WorkCounts(0, narrow * (2 * self.s + 1))
                    + WorkCounts(self.v * self.o, self.s * (2 * self.v * self.o + narrow)))
        return WorkCounts()

    def apply_vertex(self) -> WorkCounts:
        n, i, o = self.v, self.i, self.o
        wide, scale = self.wise(n * o, 2), self.wise(n, 1) + WorkCounts(n * o, self.s * n * (2 * o + 1))
        bias = WorkCounts(n * o, self.s * (2 * n * o + o))
        if self.kind == "gcn":  # product, scaled; scaled, bias
            return self._product(i, o) + scale + scale + bias
        if self.kind == "sage-mean":
            return self._product(i, o) * 2 + wide + bias
        if self.kind == "sage-pool":
            pool = self._product(i, i) + WorkCounts(n * i, self.s * (2 * n * i + i)) + self.wise(n * i, 1)
            return pool + self._product(i, o) * 2 + wide + bias
        if self.kind == "gat":  # product; per end, times its vector and summed by head; joined; bias
            score = WorkCounts(n * o, self.s * (2 * n * o + o)) + WorkCounts(n * o, self.s * (n * o + n * self.h))
            return self._product(i, o) + score * 2 + WorkCounts(0, 2 * self.s * n * (o + self.h)) + bias
        return (self._product(i, o) + bias) * 3 + WorkCounts(0, 4 * self.s * n * o) + self._product(i, o) + wide + bias

    def _softmax(self) -> WorkCounts:
        """The largest score so far, the rescaling, and the sums of exponents and of weighted values."""
        e, v, h, o, s = self.e, self.v, self.h, self.o, self.s
        scale = WorkCounts(0, 2 * s * v * h) + self.wise(v * h, 2) + self.wise(v * h, 1) + WorkCounts(0, 2 * s * v * h)
        rescaled = self.wise(v * h, 2) + WorkCounts(v * o, s * (2 * v * o + v * h))
        exponents = self._selected(h) + self.wise(e * h, 2) + self.wise(e * h, 1)
        values = WorkCounts(e * o, s * (2 * e * o + e * h))
        return scale + self._added(h) + rescaled + exponents + self._added(h) + values + self._added(o)

    def _product(self, inner: int, outer: int) -> WorkCounts:
        n = self.v
        return WorkCounts(2 * n * inner * outer, self.s * (n * inner + inner * outer + n * outer))

    def _selected(self, width: int) -> WorkCounts:
        return WorkCounts(0, self.e * (2 * width * self.s + _INDEX))

    def _added(self, width: int) -> WorkCounts:
        return WorkCounts(self.e * width, self.e * (3 * width * self.s + _INDEX))

    def wise(self, elements: int, inputs: int) -> WorkCounts:
        """One elementwise operation with the given number of inputs."""
        return WorkCounts(elements, self.s * elements * (inputs + 1))
