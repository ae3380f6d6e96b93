"""The device memory that a layer's computations need, measured on tensors without data, so for any layer.

At any time a computation has a number of bytes per edge, per source and per target, and a constant. The maxima of these
over time bound the total, so the measured slopes of large chunks, one dimension at a time, bound the need of any chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from weft.runtime.graph_network import kernels
from weft.runtime.graph_network.account import Account
from weft.runtime.graph_network.kernels import Edges, LayerInput, Widths
from weft.runtime.graph_network.layers import Layer, Parameters

#: Numbers of rows so large that the constant part is negligible.
_LARGE = 1 << 22


class _Without:
    """A layer's computations on chunks of any size, on tensors without data."""

    def __init__(self, layer: Layer, p: Parameters, found: Widths, entry: LayerInput) -> None:
        self.layer, self.found, self.entry = layer, found, entry
        self.account = Account()  # records the inputs of a computation
        self.p = {name: torch.empty_like(value, device="meta", requires_grad=True) for name, value in p.items()}
        self.dtype = next(iter(p.values())).dtype

    def of(self, rows: int, *columns: int) -> list[Tensor]:
        return [self.account.room((rows, width), self.dtype, "meta") for width in columns]

    def edges(self, count: int) -> Edges:
        return Edges(*(self.account.room((count,), torch.int32, "meta") for _ in range(2)))

    def state(self, rows: int, training: bool = True) -> list[Tensor]:
        return self.of(rows, *self.found.state(self.layer.gather, training))

    def prepare(self, edges: int, sources: int, targets: int) -> Callable[[], object]:
        x, degree = self.of(targets, self.found.inputs, 1)
        return lambda: kernels.prepare(self.layer, self.p, x, degree, self.entry)

    def gather(self, edges: int, sources: int, targets: int, training: bool = True) -> Callable[[], object]:
        state, chunk = self.state(targets, training), self.edges(edges)
        source, target = self.of(sources, self.found.source)[0], self._target(targets)[0]
        return lambda: kernels.gather(self.layer, self.p, state, source, target, chunk)

    def vertex(self, edges: int, sources: int, targets: int) -> Callable[[], object]:
        x, degree = self.of(targets, self.found.inputs, 1)
        state = self.state(targets)

        def run() -> Tensor:
            total = kernels.closed(self.layer, state, degree)
            return kernels.vertex(self.layer, self.p, x, total, degree, False, self.entry)
        return run

    def loss(self, edges: int, sources: int, targets: int) -> Callable[[], object]:
        y, labels = *self.of(targets, self.found.outputs), self.account.room((targets,), torch.int64, "meta")
        return lambda: kernels.loss_back(y, labels, 1.0)

    def vertex_back(self, edges: int, sources: int, targets: int) -> Callable[[], object]:
        x, degree, gy = self.of(targets, self.found.inputs, 1, self.found.outputs)
        state = self.state(targets)
        return lambda: kernels.vertex_back(self.layer, self.p, x, state, degree, gy, False, self.entry)

    def gather_back(self, edges: int, sources: int, targets: int) -> Callable[[], object]:
        back, chunk = self.of(targets, *self.found.back(self.layer.gather)), self.edges(edges)
        source, into = self.of(sources, self.found.source, self.found.source)
        target = self._target(targets)[0]
        return lambda: kernels.edges_back(self.layer, self.p, source, target, back, chunk, into)

    def prepare_back(self, edges: int, sources: int, targets: int) -> Callable[[], object]:
        x, degree, gx = self.of(targets, self.found.inputs, 1, self.found.inputs)
        given = self.of(targets, self.found.source, *([self.found.target] if self.found.target else []))
        return lambda: kernels.prepare_back(self.layer, self.p, x, degree, given, gx, self.entry)

    def _target(self, rows: int) -> Sequence[Tensor | None]:
        return self.of(rows, self.found.target) if self.found.target else [None]


def needs(layer: Layer, p: Parameters, found: Widths, entry: LayerInput = kernels.AS_IS
          ) -> Mapping[str, tuple[int, int, int, int]]:
    """The bytes that each kind of step needs: constant, per edge, per source, and per target."""
    without = _Without(layer, p, found, entry)
    made = {name: _slopes(without, getattr(without, name)) for name in (
        "prepare", "gather", "vertex", "loss", "vertex_back", "gather_back", "prepare_back")}
    if layer.fuses:  # ones, and the product; sparse tensors have no contents only where they are on a device
        size = without.dtype.itemsize
        made["fused"] = (0, size, 0, found.gathered * size)
        made["fused_back"] = (0, size, found.gathered * size, 0)
    return made


def _slopes(without: _Without, kernel: Callable[[int, int, int], Callable[[], object]]) -> tuple[int, int, int, int]:
    def peak(*sizes: int) -> int:
        account = without.account = Account()
        for value in without.p.values():
            account.hold(value)
        run = kernel(*sizes)
        given = account.used
        with account.counting():
            result = run()
        del result
        return account.peak - given

    slopes = []
    for axis in range(3):
        small, large = ([1, 1, 1] for _ in range(2))
        small[axis], large[axis] = _LARGE, 2 * _LARGE
        slopes.append((peak(*large) - peak(*small)) // _LARGE)
    return peak(1, 1, 1), slopes[0], slopes[1], slopes[2]
