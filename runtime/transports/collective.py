"""Transfers by ``torch.distributed``: gloo from CPU memory, NCCL from GPU memory.

Messages between two ranks arrive in the order in which they were sent, and carry no tag: a checked program starts them
in the same order on both sides. NCCL would hang otherwise, gloo would deliver the wrong tensor. A message of several
tensors goes as that many transfers, which no copy has to put together first.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from runtime.buffers import BufferTable, Landing, Staging
from runtime.session import Session
from runtime.transports import Parcel, Transfer, TransportError
from runtime.transports.memory import allocate, view

__all__ = ["Collective"]

LOOK = 20e-6  # seconds between two looks at a GPU transfer


@dataclass(frozen=True, slots=True)
class _Begun:
    peer: int
    tensors: tuple[Tensor, ...]
    handles: tuple[dist.Work, ...]

    def wait(self) -> None:
        try:
            for tensor, handle in zip(self.tensors, self.handles, strict=True):
                while tensor.is_cuda and not handle.is_completed():
                    time.sleep(LOOK)
                handle.wait()
        except RuntimeError as error:
            raise _gone(self.peer, error) from None


class Collective:
    """The messages of one rank over the session's process group (gloo) or one group a pair of ranks (NCCL).

    Groups made by pairs have one stream each, so a receive that waits holds up nobody but its pair; they are made, and
    used once, before the first step, in one order on all ranks.
    """

    def __init__(self, session: Session, table: BufferTable, backend: str) -> None:
        on_gpu = session.device.type == "cuda"
        if on_gpu != (backend == "nccl"):
            carries, has, use = ("CPU", "GPU", "nccl") if on_gpu else ("GPU", "CPU", "gloo")
            raise TransportError(f"--transport {backend} carries tensors in {carries} memory, but the stages run on a "
                                 f"{has}; use {use} or shared")
        self._staging_slots: list[Tensor | None] = [None] * len(table.staging_slots)
        self._table, self._device, self._process = table, session.device, session.process
        slots = allocate(table.slots, session.device)
        self._slots = {landing: view(slots[landing.slot], landing.layout) for landing in table.receives}
        self._groups = _connect(session, backend, {*(landing.peer for landing in table.receives),
                                                    *(message.peer for message in table.sends)})

    def slot(self, landing: Landing) -> Parcel:
        return self._slots[landing]

    def receive(self, landing: Landing) -> Transfer:
        tensors, peer = tuple(self._slots[landing].values()), landing.peer
        process, group = self._process(peer), self._groups[peer]
        try:
            return _Begun(peer, tensors, tuple(_begun(dist.irecv(t, process, group)) for t in tensors))
        except RuntimeError as error:
            raise _gone(peer, error) from None

    def send(self, message: Staging, parcel: Parcel) -> Transfer:
        peer = message.peer
        if not all(tensor.is_contiguous() for tensor in parcel.values()):
            parcel = {name: place.copy_(parcel[name]) for name, place in self._staged(message).items()}
        tensors = tuple(parcel[part.name] for part in message.layout.parts)
        process, group = self._process(peer), self._groups[peer]
        try:
            return _Begun(peer, tensors, tuple(_begun(dist.isend(t, process, group)) for t in tensors))
        except RuntimeError as error:
            raise _gone(peer, error) from None

    def close(self) -> None:
        self._slots.clear()
        self._staging_slots.clear()

    def _staged(self, message: Staging) -> Parcel:
        memory = self._staging_slots[message.slot]
        if memory is None:
            memory, = allocate([self._table.staging_slots[message.slot]], self._device)
            self._staging_slots[message.slot] = memory
        return view(memory, message.layout)


def _connect(session: Session, backend: str, peers: set[int]) -> dict[int, dist.ProcessGroup | None]:
    """Per peer, the group for its messages, with the connection made: a byte has gone both ways."""
    lists = session.exchange(sorted(peers), "connecting")
    pairs = sorted({(min(rank, peer), max(rank, peer)) for rank, found in enumerate(lists) for peer in found})
    made: dict[int, dist.ProcessGroup | None] = {}
    byte = torch.zeros(1, dtype=torch.uint8, device=session.device)
    for pair in pairs:  # one order on all ranks
        group = _pair_group(session, pair) if backend == "nccl" else None
        if session.rank not in pair:
            continue
        low, high = pair
        peer = high if session.rank == low else low
        session.doing(f"connecting to rank {peer}", [peer])
        for source in pair:
            if source == session.rank:
                dist.send(byte, session.process(peer), group)
            else:
                dist.recv(byte, session.process(peer), group)
        made[peer] = group
    return made


def _pair_group(session: Session, pair: tuple[int, int]) -> dist.ProcessGroup | None:
    """A group of the two ranks, made for every replica, by all ranks of all of them."""
    made: list[dist.ProcessGroup | None] = [
        dist.new_group([replica * session.world + rank for rank in pair], backend="nccl")
        for replica in range(session.replicas)]
    return made[session.replica]


def _begun(handle: dist.Work | None) -> dist.Work:
    assert handle is not None  # it is None only on a rank outside the group
    return handle


def _gone(peer: int, error: RuntimeError) -> ConnectionError:
    reason = str(error).splitlines()[0].split(". ")[0].removeprefix("[").partition("] ")[2] or type(error).__name__
    return ConnectionError(f"lost rank {peer} ({reason})")
