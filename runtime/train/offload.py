"""Tensors that a forward saves for its backward, moved to the host's memory and back, beside the device's computation.

Autograd passes every tensor that it saves to :meth:`Shelf.put` and fetches it again with :meth:`Shelf.take`
(``torch.autograd.graph.saved_tensors_hooks``), so in between nothing else keeps it alive. Tensors that share memory
move together. The model's own tensors (parameters, buffers) stay, and so do a stage's inputs: one from another rank
lies in a receive buffer that is not reused meanwhile (:mod:`weft.runtime.plan.buffers`). Only a stage that is
recomputed moves its inputs, which are all it keeps.

Copies are made by a :class:`CopyEngine`, one at a time each way. On a GPU these are two streams beside the computing
one, to and from page-locked host memory: memory is released, or read, by work that the computing stream runs after it
has waited for the copy, so neither the host nor the stream waits for longer than that. On a CPU they are two threads,
and the host's memory is outside torch's allocator: the memory counted as the device's falls and rises as it would on a
GPU, and plans can be tried without one.

In a problem (:mod:`weft.solver.offload`), offload and load are blocks that occupy the device for a moment, and the
copies are transfers: that to the host begins with the end of the forward and is over when the offload block begins,
that back begins with the load block and is over when the pass that needs it begins. Blocks that occupy the device for
as long as the copy takes (no transfer in between) are run so: then the copy begins and ends in the block. The host's
capacity is not part of a problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor


class Copying(Protocol):
    """Copies under way."""

    def wait(self) -> None:
        """Make later work on the device come after the copies."""


class CopyEngine:
    """Copies between ``device`` and the host's memory, in the order in which they are started, independently each way.

    Released host memory is reused, so that no more is allocated there once a step has run.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._threads: dict[bool, ThreadPoolExecutor] = {}
        self._streams: dict[bool, torch.cuda.Stream] = {}
        self._free: dict[int, list[Tensor]] = {}  # host memory by size

    def to_host(self, here: Sequence[Tensor]) -> tuple[list[Tensor], Copying]:
        """Copies of the flat byte tensors ``here`` in host memory, complete once the returned ``Copying`` has been
        waited for. The device's tensors must be kept until then."""
        there = [self._host(tensor.numel()) for tensor in here]
        return there, self._begin([*zip(there, here, strict=True)], outward=True)

    def to_device(self, there: Sequence[Tensor]) -> tuple[list[Tensor], Copying]:
        """The same back into new device memory."""
        here = [torch.empty(tensor.numel(), dtype=torch.uint8, device=self.device) for tensor in there]
        return here, self._begin([*zip(here, there, strict=True)], outward=False)

    def release(self, there: Iterable[Tensor]) -> None:
        """Release host memory of :meth:`to_host` without readers, except copies that have been waited for."""
        for tensor in there:
            self._free.setdefault(tensor.numel(), []).append(tensor)

    def close(self) -> None:
        """End its threads, and free its host memory."""
        for thread in self._threads.values():
            thread.shutdown()
        self._threads.clear()
        self._free.clear()

    def _host(self, size: int) -> Tensor:
        if self._free.get(size):
            return self._free[size].pop()
        if self.device.type == "cuda":
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return torch.from_numpy(np.empty(size, dtype=np.uint8))

    def _begin(self, pairs: list[tuple[Tensor, Tensor]], outward: bool) -> Copying:
        if self.device.type == "cuda":
            return _OnStream(pairs, self._stream(outward))
        if outward not in self._threads:
            self._threads[outward] = ThreadPoolExecutor(1, "offload" if outward else "load")
        return _InThread(pairs, self._threads[outward])

    def _stream(self, outward: bool) -> torch.cuda.Stream:
        if outward not in self._streams:
            self._streams[outward] = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        return self._streams[outward]


class _InThread:
    """Copies made by a thread. The thread refers to tensors only through this object, so that memory is released at the
    wait."""

    def __init__(self, pairs: list[tuple[Tensor, Tensor]], thread: ThreadPoolExecutor) -> None:
        self._pairs = pairs
        self._done: Future[None] = thread.submit(self._copy)

    def _copy(self) -> None:
        for i in range(len(self._pairs)):
            self._pairs[i][0].copy_(self._pairs[i][1])

    def wait(self) -> None:
        self._done.result()
        self._pairs.clear()


class _OnStream:
    """Copies on a separate stream, behind the computing stream's work so far."""

    def __init__(self, pairs: list[tuple[Tensor, Tensor]], stream: torch.cuda.Stream) -> None:
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
        self._done = stream.record_event()
        self._device = stream.device

    def wait(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._done)


class _Place(NamedTuple):
    """A tensor as a view of one of the shelf's memories."""

    memory: int
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class Shelf:
    """The saved tensors of one stage's forward over one micro-batch; tensors in memory of ``stays`` are not moved, nor
    are those that are put while ``moves()`` is false."""

    def __init__(self, engine: CopyEngine, stays: Iterable[Tensor], moves: Callable[[], bool] = lambda: True) -> None:
        self._engine, self._moves = engine, moves
        self._stays: set[int] = set()
        self.leave(stays)
        self._memories: list[Tensor] = []  # bytes, here or on the host
        self._number: dict[int, int] = {}  # address -> which memory
        self._elsewhere: list[Tensor] = []  # their copies, while these are under way
        self._copying: Copying | None = None
        self._away = False

    def leave(self, tensors: Iterable[Tensor]) -> None:
        """Keep these on the device, and all tensors that share memory with them."""
        self._stays.update(tensor.untyped_storage().data_ptr() for tensor in tensors)

    @property
    def size(self) -> int:
        """Bytes moved."""
        return sum(memory.numel() for memory in self._memories)

    def put(self, tensor: Tensor) -> Tensor | _Place:
        """Take ``tensor``; the result is for :meth:`take`."""
        memory = tensor.untyped_storage()
        if memory.data_ptr() in self._stays or memory.nbytes() == 0:
            return tensor.detach()  # an operation that saves its own result would keep itself alive until its backward
        if memory.data_ptr() not in self._number:
            if not self._moves():
                self.leave((tensor,))  # another user keeps it on the device
                return tensor.detach()
            self._number[memory.data_ptr()] = len(self._memories)
            self._memories.append(torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(memory))
        return _Place(self._number[memory.data_ptr()], tensor.dtype, tensor.shape, tensor.stride(),
                      int(tensor.storage_offset()))

    def take(self, kept: Tensor | _Place) -> Tensor:
        """The tensor passed to :meth:`put`. It must be on the device: loaded, if it was offloaded."""
        if isinstance(kept, Tensor):
            return kept
        assert not self._away
        memory = self._memories[kept.memory]
        return torch.empty(0, dtype=kept.dtype, device=memory.device).set_(
            memory.untyped_storage(), kept.offset, kept.size, kept.stride)

    def begin_offload(self) -> None:
        """Begin to copy everything to the host."""
        self._number.clear()
        self._elsewhere, self._copying = self._engine.to_host(self._memories)

    def begin_load(self) -> None:
        """Allocate the device's memory again, and begin to copy everything back."""
        self._elsewhere, self._copying = self._engine.to_device(self._memories)

    def arrive(self) -> None:
        """Wait for the copies under way, if any, and release their sources."""
        if self._copying is not None:
            self._copying.wait()
            if self._away:
                self._engine.release(self._memories)
            self._copying, self._memories, self._elsewhere = None, self._elsewhere, []
            self._away = not self._away
