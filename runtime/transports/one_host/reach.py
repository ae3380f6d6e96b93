"""Reads from the memory of another process of the host.

If permitted, the receiver copies directly from the tensor (``process_vm_readv``), which is one copy, as for messages of
known shape. Linux permits this only if the reader may also trace the process, which many distributions forbid except
for child processes (Yama's ``ptrace_scope``), and GPU memory cannot be read in this way. Otherwise the sender first
copies its tensors into a growing memory file (``memfd``), which the receiver maps: two copies.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from weft.runtime.plan.buffers import Staging
from weft.runtime.ranks.leftovers import beginning
from weft.runtime.transports.interface import TransportError
from weft.runtime.transports.one_host.one_sided_reads import Offer
from weft.runtime.transports.tensors import Growing, can_go_as_it_lies, whole


class _IoVector(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_READ: Any = getattr(ctypes.CDLL(None, use_errno=True), "process_vm_readv", None)


def copy_from(process: int, address: int, into: int, size: int) -> None:
    """Copy ``size`` bytes at ``address`` of ``process`` to ``into`` here. Raises ``OSError``, ``ProcessLookupError``
    if the process has ended."""
    if _READ is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    done = 0
    while done < size:
        here, there = _IoVector(into + done, size - done), _IoVector(address + done, size - done)
        count = _READ(process, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        if count <= 0:
            raise OSError(ctypes.get_errno() or errno.EIO, os.strerror(ctypes.get_errno() or errno.EIO))
        done += count


def can_read(process: int, address: int, token: bytes) -> bool:
    """Whether this process may read the memory of ``process``, which has ``token`` at ``address``."""
    found = ctypes.create_string_buffer(len(token))
    try:
        copy_from(process, address, ctypes.addressof(found), len(token))
    except OSError:
        return False
    return found.raw == token


class _File:
    """A file in memory, and where it is mapped; it grows and is kept."""

    def __init__(self) -> None:
        self.number = os.memfd_create("weft")
        self.memory = torch.empty(0, dtype=torch.uint8)

    def room(self, size: int) -> Tensor:
        """At least ``size`` bytes."""
        if size > len(self.memory):
            size = max(size, 2 * len(self.memory), mmap.PAGESIZE)
            try:
                os.posix_fallocate(self.number, 0, size)
                mapped = mmap.mmap(self.number, size)
            except OSError as error:
                raise TransportError(f"--transport shared: cannot have {size} bytes of shared memory for a message of "
                                     f"unknown shape: {error.strerror}") from None
            self.memory = torch.frombuffer(mapped, dtype=torch.uint8)
        return self.memory


class OwnHost:
    """Reads between processes of one host: ``processes`` are those of the peers. ``readers``: the peers that may read
    this process's memory."""

    def __init__(self, processes: Mapping[int, int], readers: Collection[int]) -> None:
        self._processes, self._readers = processes, readers
        self._staging: dict[int, Growing] = {}  # by staging buffer
        self._files: dict[int, _File] = {}
        self._mapped: dict[tuple[int, int], Tensor] = {}  # by peer and its file

    def offer(self, message: Staging, tensors: Sequence[Tensor]) -> Offer:
        size = sum(whole(tensor.nbytes) for tensor in tensors)
        if message.peer not in self._readers or any(tensor.is_cuda for tensor in tensors):
            if message.slot not in self._files:
                self._files[message.slot] = _File()
            file = self._files[message.slot]
            memory = file.room(size)
            return Offer(_copied(tensors, memory), file.number, memory.data_ptr())
        if all(map(can_go_as_it_lies, tensors)):
            return Offer(tensors)
        staging = self._staging.setdefault(message.slot, Growing(torch.device("cpu")))
        return Offer(_copied(tensors, staging.room(size)))

    def read(self, peer: int, file: int, address: int, into: Tensor) -> None:
        try:
            if file >= 0:
                flat = into.view(-1).view(torch.uint8)
                flat.copy_(self._file(peer, file, address + into.nbytes)[address:address + into.nbytes])
            else:
                copy_from(self._processes[peer], address, into.data_ptr(), into.nbytes)
        except OSError as error:
            if beginning(self._processes[peer]) is None:
                raise ConnectionError(f"lost rank {peer} (its process has ended)") from None
            raise TransportError(f"rank {peer}'s memory cannot be read from here any more ({error.strerror}): its "
                                 "process must not change its user, or whether others may trace it") from None

    def close(self) -> None:
        for file in self._files.values():
            os.close(file.number)
        self._files, self._mapped, self._staging = {}, {}, {}

    def _file(self, peer: int, file: int, size: int) -> Tensor:
        """File ``file`` of ``peer``, mapped up to ``size`` at least: it may have grown."""
        found = self._mapped.get((peer, file))
        if found is None or len(found) < size:
            with open(f"/proc/{self._processes[peer]}/fd/{file}", "r+b") as opened:
                found = torch.frombuffer(mmap.mmap(opened.fileno(), 0), dtype=torch.uint8)
            self._mapped[peer, file] = found
        return found


def _copied(tensors: Sequence[Tensor], memory: Tensor) -> list[Tensor]:
    """Copies of ``tensors``, one after another in ``memory``."""
    found, start = [], 0
    for tensor in tensors:
        place = memory[start:start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        found.append(place.copy_(tensor))
        start += whole(tensor.nbytes)
    return found
