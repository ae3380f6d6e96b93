"""The packed forms of tensors that autograd saves, from the pack hook until the unpack hook.

An absent storage (:class:`AbsentStorage`) is copied back (:class:`OffloadedStorage`) or recomputed
(:class:`~weft.runtime.captured.memory.recomputation.PieceResult`). A packed tensor is a :class:`StorageView` of
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from weft.runtime.train.offload import CopyEngine, Copying

#: The error message of a second unpack.
TWICE = "a recomputed or offloaded tensor of a stage was unpacked twice: a stage goes backward once for each forward"


class Unpackable(Protocol):
    """The packed form of a tensor."""

    def fetch(self) -> Tensor:
        """The tensor."""


#: The result of a pack hook: the tensor itself or its packed form.
Packed: TypeAlias = Tensor | Unpackable


class AbsentStorage(Protocol):
    """A storage that is not in device memory. ``uses``: the number of outstanding uses."""

    uses: int

    def fetch(self) -> torch.UntypedStorage:
        """The storage on the device, for one use."""

    def discard(self) -> None:
        """End one use."""


class OffloadedStorage:
    """A storage that is copied to the host, and back when it is fetched. ``uses``: the number of outstanding uses.
    ``before``: returns the storage offloaded before this one, if it is alive: the backward needs it next. ``is_due``:
    the copy has had one piece's time, and is completed after the next piece."""

    def __init__(self, tensor: Tensor, before: Callable[[], OffloadedStorage | None]) -> None:
        self.engine = _engine(tensor.device)
        self.on_device: Tensor | None = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
            tensor.untyped_storage())
        self.copying: Copying | None = None
        self.on_host: Any = None
        self.uses, self.is_due, self.arriving = 0, False, list[Tensor]()
        self.before = before

    def start_copy(self) -> None:
        """Start the copy to the host unless it has started; not before the producer has run, which may write in parts.
        """
        if self.on_host is None:
            assert self.on_device is not None
            self.on_host, self.copying = self.engine.to_host([self.on_device])

    def finish_copy(self) -> None:
        """Complete the copy to the host, and release the device memory."""
        self.start_copy()
        assert self.copying is not None
        self.copying.wait()
        self.on_device = self.copying = None

    def prefetch(self) -> None:
        """Start the copy to the device unless it has started."""
        if self.on_device is None and self.copying is None and self.uses:
            self.arriving, self.copying = self.engine.to_device(self.on_host)

    def fetch(self) -> torch.UntypedStorage:
        """The storage on the device, for one use."""
        if self.copying is not None and self.on_device is not None:
            self.finish_copy()  # the forward ended with an error
        self.prefetch()
        if self.copying is not None:
            self.copying.wait()
            self.on_device, self.arriving, self.copying = self.arriving[0], [], None
            self.engine.release(self.on_host)
            if (before := self.before()) is not None:
                before.prefetch()
        assert self.on_device is not None
        memory = self.on_device.untyped_storage()
        self.discard()
        return memory

    def discard(self) -> None:
        """End one use; the last one releases the device memory."""
        self.uses -= 1
        if not self.uses and self.copying is None and self.on_host is not None:
            self.on_device = None


class StorageView:
    """A tensor as a view of an absent storage: one use of it, fetched at most once."""

    __slots__ = ("device", "dtype", "memory", "offset", "size", "stride")

    def __init__(self, memory: AbsentStorage, tensor: Tensor) -> None:
        memory.uses += 1
        self.memory: AbsentStorage | None = memory
        self.dtype, self.device = tensor.dtype, tensor.device
        self.size, self.stride, self.offset = tensor.shape, tensor.stride(), int(tensor.storage_offset())

    def fetch(self) -> Tensor:
        """The tensor."""
        if self.memory is None:
            raise RuntimeError(TWICE)
        memory, self.memory = self.memory, None
        return torch.empty(0, dtype=self.dtype, device=self.device).set_(
            memory.fetch(), self.offset, self.size, self.stride)

    def __del__(self) -> None:
        if self.memory is not None:
            self.memory.discard()


class SavedBuffer:
    """A saved buffer, whose version is checked here: with hooks, torch does not check it."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.version = tensor, tensor._version

    def fetch(self) -> Tensor:
        """The buffer. Raises :class:`RuntimeError` if it has been written to since it was saved."""
        if self.tensor._version != self.version:
            raise RuntimeError(f"a buffer of shape {tuple(self.tensor.shape)} has been written to between the forward "
                               "and the backward of a micro-batch that need its numbers: let the model read a clone "
                               "of it")
        return self.tensor


def fetch(packed: Packed) -> Tensor:
    """The tensor of its packed form: the unpack hook."""
    return packed if isinstance(packed, Tensor) else packed.fetch()


def is_weight(tensor: Tensor) -> bool:
    """Whether ``tensor`` is a parameter or a view of one."""
    return isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)


_ENGINES: dict[torch.device, CopyEngine] = {}


def _engine(device: torch.device) -> CopyEngine:
    """The copy engine of all stages on ``device``."""
    if device not in _ENGINES:
        _ENGINES[device] = CopyEngine(device)
    return _ENGINES[device]
