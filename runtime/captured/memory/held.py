"""Stand-ins for tensors that autograd saved, until the backward fetches them.

An absent memory (:class:`AbsentMemory`) is copied back (:class:`Away`) or made again
(:class:`~weft.runtime.captured.memory.second_run.Result`). A tensor is an :class:`AbsentView` of such a memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from weft.runtime.train.offload import CopyEngine, Copying

#: The error when the same is fetched a second time.
TWICE = "what a stage had recomputed or offloaded was asked for twice: it goes backward once for each forward"


class Fetched(Protocol):
    """A stand-in for a tensor."""

    def fetch(self) -> Tensor:
        """The tensor."""


#: The result of a pack hook: the tensor itself, or its stand-in until the backward.
Held: TypeAlias = Tensor | Fetched


class AbsentMemory(Protocol):
    """A memory that will be fetched ``uses`` times, and is absent now."""

    uses: int

    def fetch(self) -> torch.UntypedStorage:
        """Its memory, for one of its uses."""

    def forget(self) -> None:
        """Count one use as over."""


class Away:
    """One memory that is copied to the host at once, and back when it is fetched. ``uses``: the number of fetches;
    ``before``: the memory moved before this one, if still needed, which comes back after it."""

    def __init__(self, tensor: Tensor, before: Callable[[], Away | None]) -> None:
        self.engine = _engine(tensor.device)
        self.here: Tensor | None = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
            tensor.untyped_storage())
        self.copying: Copying | None = None
        self.there: Any = None
        self.uses, self.old, self.coming = 0, False, list[Tensor]()
        self.before = before

    def begin(self) -> None:
        """Begin to copy it, if not yet begun: its operator, which may write its parts one after another, has run."""
        if self.there is None:
            assert self.here is not None
            self.there, self.copying = self.engine.to_host([self.here])

    def leave(self) -> None:
        """Complete the copy to the host, and release the device's memory."""
        self.begin()
        assert self.copying is not None
        self.copying.wait()
        self.here = self.copying = None

    def come(self) -> None:
        """Begin to copy it back, if not yet begun."""
        if self.here is None and self.copying is None and self.uses:
            self.coming, self.copying = self.engine.to_device(self.there)

    def fetch(self) -> torch.UntypedStorage:
        """Its memory on the device, for one of its uses."""
        if self.copying is not None and self.here is not None:
            self.leave()  # an error ended the forward early
        self.come()
        if self.copying is not None:
            self.copying.wait()
            self.here, self.coming, self.copying = self.coming[0], [], None
            self.engine.release(self.there)
            if (before := self.before()) is not None:
                before.come()
        assert self.here is not None
        memory = self.here.untyped_storage()
        self.forget()
        return memory

    def forget(self) -> None:
        """Count one use as over."""
        self.uses -= 1
        if not self.uses and self.copying is None and self.there is not None:
            self.here = None


class AbsentView:
    """A tensor as a view of an absent memory: one use of it, fetched once or never."""

    __slots__ = ("device", "dtype", "memory", "offset", "size", "stride")

    def __init__(self, memory: AbsentMemory, tensor: Tensor) -> None:
        memory.uses += 1
        self.memory: AbsentMemory | None = memory
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
            self.memory.forget()


class Still:
    """A buffer: with hooks, torch no longer checks whether it has been written to, so this does."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.version = tensor, tensor._version

    def fetch(self) -> Tensor:
        """The tensor, as it was saved."""
        if self.tensor._version != self.version:
            raise RuntimeError(f"a buffer of shape {tuple(self.tensor.shape)} has been written to between the forward "
                               "and the backward of a micro-batch that need its numbers: let the model read a clone "
                               "of it")
        return self.tensor


def fetch(held: Held) -> Tensor:
    """The tensor that ``held`` is or stands for."""
    return held if isinstance(held, Tensor) else held.fetch()


_ENGINES: dict[torch.device, CopyEngine] = {}


def _engine(device: torch.device) -> CopyEngine:
    """The engine that copies for all stages on ``device``."""
    if device not in _ENGINES:
        _ENGINES[device] = CopyEngine(device)
    return _ENGINES[device]
