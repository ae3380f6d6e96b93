"""The host memory of a pass: the values of all vertices, by layer, and the edges of every chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from weft.runtime.graph_network.device_tensors import GridLike
from weft.runtime.graph_network.kernels import Widths
from weft.runtime.graph_network.layers import GraphNetwork, Layer


class ChunkedEdges:
    """The edges of a grid's chunks as tensors. ``pinned``: in pinned memory, for asynchronous copies to a GPU."""

    def __init__(self, grid: GridLike, pinned: bool) -> None:
        self.grid, self._pinned = grid, pinned
        self.source, self.target = self._own(torch.from_numpy(grid.source)), self._own(torch.from_numpy(grid.target))
        degree = torch.zeros(int(grid.begins[-1]), dtype=torch.int64)
        for j in range(grid.chunks):
            first = int(grid.begins[j])
            for i in range(grid.chunks):
                degree[first:int(grid.begins[j + 1])] += torch.bincount(
                    self.target[grid.span(i, j)], minlength=int(grid.begins[j + 1]) - first)
        self.degree = degree
        self._selected: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._sparse: dict[tuple[int, int, bool], tuple[Tensor, Tensor]] = {}

    def _own(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory() if self._pinned else tensor

    def selected(self, i: int, j: int) -> tuple[Tensor, Tensor]:
        """The rows of chunk (i, j)'s sources that have an edge, and each edge's place among them."""
        if (i, j) not in self._selected:
            rows, places = np.unique(self.grid.source[self.grid.span(i, j)], return_inverse=True)
            self._selected[i, j] = torch.from_numpy(rows.astype(np.int64)), self._own(torch.from_numpy(
                places.reshape(-1).astype(np.int32)))
        return self._selected[i, j]

    def sparse(self, i: int, j: int, by_source: bool) -> tuple[Tensor, Tensor]:
        """The edges in compressed sparse form: the offset of each target's (or source's) edges, and the other ends."""
        if (i, j, by_source) not in self._sparse:
            span, begins = self.grid.span(i, j), self.grid.begins
            ends, others = self.grid.target[span], self.grid.source[span]
            ends, others = (others, ends) if by_source else (ends, others)
            order = np.lexsort((others, ends))
            ends, others = ends[order], others[order]
            chunk = i if by_source else j
            counts = np.bincount(ends, minlength=int(begins[chunk + 1] - begins[chunk]))
            self._sparse[i, j, by_source] = (
                self._own(torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))),
                self._own(torch.from_numpy(others.astype(np.int32))))
        return self._sparse[i, j, by_source]


class Host:
    """Arrays with one row per vertex, by ``(kind, layer, part)``: allocated once, written in every pass."""

    def __init__(self, network: GraphNetwork, found: Sequence[Widths], features: Tensor, labels: Tensor | None,
                 edges: Mapping[bool, ChunkedEdges], dtype: torch.dtype, pinned: bool) -> None:
        self.features, self.edges, self.vertices = features, edges, len(features)
        self.labels = torch.full((self.vertices,), -1) if labels is None else labels.long()
        self.degree = {loops: chunked.degree.to(dtype)[:, None] for loops, chunked in edges.items()}
        self._loops = [layer.loops for layer in network.layers]
        self._held: dict[tuple[str, int, int], Tensor] = {}
        for number, (layer, width) in enumerate(zip(network.layers, found, strict=True)):
            for kind, columns in _columns(layer, width, labels is not None).items():
                for part, wide in enumerate(columns):
                    if not (kind == "g_inputs" and number == 0):
                        self._held[kind, number, part] = torch.empty(
                            (self.vertices, wide), dtype=dtype, pin_memory=pinned)

    def of(self, layer: int, *kinds: str) -> list[Tensor]:
        """The arrays of ``kinds``; the inputs are the outputs of the previous layer, or the features."""
        return [array for kind in kinds for array in self._of(layer, kind)]

    def _of(self, layer: int, kind: str) -> list[Tensor]:
        if kind == "inputs":
            return [self.features] if layer == 0 else self._of(layer - 1, "outputs")
        if kind in ("degree", "labels"):
            return [self.labels if kind == "labels" else self.degree[self._loops[layer]]]
        return [self._held[key] for part in range(3) if (key := (kind, layer, part)) in self._held]


def _columns(layer: Layer, width: Widths, training: bool) -> Mapping[str, tuple[int, ...]]:
    target = (width.target,) if width.target else ()
    found: dict[str, tuple[int, ...]] = {"source": (width.source,), "target": target, "outputs": (width.outputs,)}
    if training:
        found |= {"state": width.state(layer.gather, True), "back": width.back(layer.gather),
                  "g_source": (width.source,), "g_target": target, "g_outputs": (width.outputs,),
                  "g_inputs": (width.inputs,)}
    return found
