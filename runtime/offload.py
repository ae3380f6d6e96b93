"""What a forward keeps for its backward, moved to the host's memory and back.

Autograd hands every tensor that it saves to :meth:`Shelf.put` and asks for it again with :meth:`Shelf.take`
(``torch.autograd.graph.saved_tensors_hooks``), so in between nothing else holds it. Tensors that share memory move
together, and what belongs to the model (parameters, buffers) stays. A GPU's tensors go to page-locked host memory;
those of a CPU to other memory of the same host, which frees nothing and is there so that plans can be tried without a
GPU.

A problem says when a stage's activations leave and when they come back, as blocks that hold the device for as long as
the copy takes. It has no words for a copy that runs beside computing, for a part of a stage's activations, or for how
much the host can hold. An input that another rank sent keeps its receive buffer meanwhile (:mod:`runtime.buffers`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Shelf"]


class _Place(NamedTuple):
    """A tensor as a view of one of the shelf's memories."""

    memory: int
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class Shelf:
    """The saved tensors of one stage's forward over one micro-batch; those that live in ``stays`` are left alone."""

    def __init__(self, stays: Iterable[Tensor]) -> None:
        self._stays = {tensor.untyped_storage().data_ptr() for tensor in stays}
        self._memories: list[Tensor] = []  # bytes, here or on the host
        self._number: dict[int, int] = {}  # address -> which memory
        self._device = torch.device("cpu")

    def put(self, tensor: Tensor) -> Tensor | _Place:
        """Take ``tensor``; what comes back is for :meth:`take`."""
        memory = tensor.untyped_storage()
        if memory.data_ptr() in self._stays or memory.nbytes() == 0:
            return tensor
        if memory.data_ptr() not in self._number:
            self._number[memory.data_ptr()] = len(self._memories)
            self._memories.append(torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(memory))
            self._device = tensor.device
        return _Place(self._number[memory.data_ptr()], tensor.dtype, tensor.shape, tensor.stride(),
                      int(tensor.storage_offset()))

    def take(self, kept: Tensor | _Place) -> Tensor:
        """The tensor that :meth:`put` was given. It must be on the device: loaded, if it was offloaded."""
        if isinstance(kept, Tensor):
            return kept
        memory = self._memories[kept.memory].untyped_storage()
        return torch.empty(0, dtype=kept.dtype, device=self._device).set_(memory, kept.offset, kept.size, kept.stride)

    def offload(self) -> None:
        """Move everything to the host."""
        self._number.clear()
        pinned = self._device.type == "cuda"
        self._move(lambda here: torch.empty(here.shape, dtype=torch.uint8, pin_memory=pinned).copy_(here))

    def load(self) -> None:
        """Move everything back."""
        self._move(lambda there: torch.empty(there.shape, dtype=torch.uint8, device=self._device).copy_(there))

    def _move(self, moved: Callable[[Tensor], Tensor]) -> None:
        for i, memory in enumerate(self._memories):
            self._memories[i] = moved(memory)
