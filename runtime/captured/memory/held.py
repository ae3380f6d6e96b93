"""What stands for a tensor that autograd saved, until the backward fetches it.

A memory that is not there now (:class:`AbsentMemory`) is copied back (:class:`Away`) or made again
(:class:`~weft.runtime.captured.memory.second_run.Result`). A tensor is a :class:`AbsentView` of such a memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from weft.runtime.train.offload import CopyEngine, Copying

#: What is said where the same is fetched a second time.
TWICE = "what a stage had recomputed or offloaded was asked for twice: it goes backward once for each forward"


class Fetched(Protocol):
    """What stands for a tensor."""

    def fetch(self) -> Tensor:
        """The tensor."""


#: What a hook gives in place of a tensor, and what stands for the tensor until the backward.
Held: TypeAlias = Tensor | Fetched


class AbsentMemory(Protocol):
    """A memory that will be fetched ``uses`` times, and is not there now."""

    uses: int

    def fetch(self) -> torch.UntypedStorage:
        """Its memory, for one of its uses."""

    def forget(self) -> None:
        """One use is over."""


class Away:
    """One memory that is copied to the host at once, and back when it is fetched. ``uses``: how often that will be;
    ``before``: the memory that was moved before this one, if it is still wanted, which comes back after it."""

    def __init__(self, tensor: Tensor, before: Callable[[], Away | None]) -> None:
        self.engine = _engine(tensor.device)
        self.here: Tensor | None = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
            tensor.untyped_storage())
        self.copying: Copying | None = None
        self.there: Any = None
        self.uses, self.old, self.coming = 0, False, list[Tensor]()
        self.before = before

    def begin(self) -> None:
        """Begin to copy it, if that has not begun: its operator, which may write one part of it after another, has
        run."""
        if self.there is None:
            assert self.here is not None
            self.there, self.copying = self.engine.to_host([self.here])

    def leave(self) -> None:
        """It is on the host now; the device's memory is given back."""
        self.begin()
        assert self.copying is not None
        self.copying.wait()
        self.here = self.copying = None

    def come(self) -> None:
        """Begin to copy it back, if that has not begun."""
        if self.here is None and self.copying is None and self.uses:
            self.coming, self.copying = self.engine.to_device(self.there)

    def fetch(self) -> torch.UntypedStorage:
        """Its memory on the device, for one of its uses."""
        if self.copying is not None and self.here is not None:
            self.leave()  # the forward was left by an error
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
        """One use is over."""
        self.uses -= 1
        if not self.uses and self.copying is None and self.there is not None:
            self.here = None


class AbsentView:
    """A tensor as a view of a memory that is not there now: one use of it, fetched once or never."""

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
    """A buffer, of which torch asks no more whether it has been written to, as hooks are there."""

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
    """The one that copies for all stages on ``device``."""
    if device not in _ENGINES:
        _ENGINES[device] = CopyEngine(device)
    return _ENGINES[device]
