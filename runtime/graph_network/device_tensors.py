"""The tensors that blocks of one rank pass to each other on the device, by the step that produced them; all are
counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from weft.runtime.graph_network.account import Account


class StepLike(Protocol):
    """A step of a pass (:class:`weft.models.graph_network.steps.StreamStep`)."""

    @property
    def name(self) -> str:
        """Unique in a pass."""

    @property
    def kind(self) -> str:
        """Its kind of work."""

    @property
    def layer(self) -> int:
        """Its layer."""

    @property
    def i(self) -> int:
        """Its row, -1: none."""

    @property
    def j(self) -> int:
        """Its column, -1: none."""


class GridLike(Protocol):
    """A grid of chunks (:class:`weft.models.graph_network.graph.ChunkGrid`)."""

    chunks: int
    begins: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    source: np.ndarray[tuple[int, ...], np.dtype[np.int32]]
    target: np.ndarray[tuple[int, ...], np.dtype[np.int32]]

    def span(self, i: int, j: int) -> slice:
        """The places of the edges of chunk (i, j)."""


class PassLike(Protocol):
    """A pass of chunks (:class:`weft.models.graph_network.steps.Pass`)."""

    @property
    def steps(self) -> Sequence[StepLike]:
        """The steps in order."""

    @property
    def grids(self) -> Mapping[bool, GridLike]:
        """Without and with self-loops, as the layers need them."""

    @property
    def owner(self) -> Sequence[int]:
        """The rank of each vertex chunk."""

    @property
    def training(self) -> bool:
        """With loss and backward."""

    def selected(self, nth: int, i: int, j: int) -> bool:
        """Whether chunk (i, j) of layer ``nth`` loads its used sources alone."""

    def fused(self, nth: int) -> bool:
        """Whether layer ``nth`` runs as sparse products."""


class DeviceTensors:
    """Tensors on ``device`` under ``account``; ``begins``: of the vertex chunks by which hosts' arrays are loaded."""

    def __init__(self, begins: np.ndarray[tuple[int, ...], np.dtype[np.int64]], account: Account,
                 device: torch.device, dtype: torch.dtype) -> None:
        self.account, self.device, self.dtype = account, device, dtype
        self._begins = begins
        self._there: dict[tuple[str, int, int, int], list[Tensor | None]] = {}

    def _rows(self, chunk: int) -> slice:
        return slice(int(self._begins[chunk]), int(self._begins[chunk + 1]))

    def _brought(self, host: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """A copy of ``host`` on the device."""
        room = self.account.room(host.shape, dtype or host.dtype, self.device)
        return room.copy_(host, non_blocking=True)

    def _put(self, step: StepLike, *tensors: Tensor | None, kind: str | None = None) -> None:
        self._there[kind or step.kind.rstrip("0123456789"), step.layer, step.i, step.j] = list(tensors)

    def _taken(self, kind: str, layer: int, i: int, j: int, keep: bool = False) -> list[Tensor | None]:
        key = kind, layer, i, j
        found = self._there[key] if keep else self._there.pop(key)
        if self.device.type == "cuda":  # not to be reused before this stream has read it
            for tensor in found:
                if tensor is not None:
                    tensor.record_stream(torch.cuda.current_stream())
        return found

    def _given(self, kind: str, layer: int, i: int, j: int, keep: bool = False) -> list[Tensor]:
        return [tensor for tensor in self._taken(kind, layer, i, j, keep) if tensor is not None]

    def _store(self, tensors: Sequence[Tensor | None], into: Sequence[Tensor], chunk: int) -> None:
        for tensor, array in zip(tensors, into, strict=True):
            if tensor is not None:
                array[self._rows(chunk)].copy_(tensor, non_blocking=True)

    def _bring(self, step: StepLike, chunk: int, *arrays: Tensor, new: Sequence[tuple[int, int]] = ()) -> None:
        """Load the rows of ``chunk``; ``new``: the shapes of further tensors to allocate."""
        made = [self.account.room(shape, self.dtype, self.device) for shape in new]
        self._put(step, *(self._brought(array[self._rows(chunk)], self.dtype if array.is_floating_point() else None)
                          for array in arrays), *made)
