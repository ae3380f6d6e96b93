"""Transfers by ``torch.distributed``: gloo from CPU memory, NCCL from GPU memory.

Messages between two ranks arrive in the order in which they were sent, and carry no tag: a checked program starts them
in the same order on both sides. NCCL would hang otherwise, gloo would deliver the wrong tensor. A message of several
tensors goes as that many transfers, which no copy has to put together first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from weft.runtime.plan.buffers import BufferTable, Landing, Staging
from weft.runtime.ranks.session import Session
from weft.runtime.transports.buffer_tensors import allocate, can_go_as_it_lies, view
from weft.runtime.transports.interface import Parcel, Transfer, TransportError
from weft.runtime.transports.two_messages import TwoMessages

__all__ = ["ProcessGroupTransport"]

LOOK = 20e-6  # seconds between two looks at a GPU transfer
#: What NCCL has types for; gloo carries any.
CARRIED = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8,
                     torch.uint8, torch.bool})


class _Channel(NamedTuple):
    """A process group, and the number that a peer has in it."""

    group: dist.ProcessGroup
    peer: int


class _Begun:
    """Operations of a process group that have been started, and what they send."""

    __slots__ = ("_handles", "_on_gpu", "_peer", "_sent")

    def __init__(self, peer: int, handles: Sequence[dist.Work], on_gpu: bool, sent: object = None) -> None:
        self._peer, self._handles, self._on_gpu, self._sent = peer, handles, on_gpu, sent

    def wait(self) -> None:
        try:
            for handle in self._handles:
                while self._on_gpu and not handle.is_completed():
                    time.sleep(LOOK)
                handle.wait()
        except RuntimeError as error:
            raise _gone(self._peer, error) from None


class ProcessGroupTransport:
    """The messages of one rank over the session's process group (gloo) or one group a pair of ranks (NCCL).

    Groups made by pairs have one stream each, so a receive that waits holds up only its pair; they are made, and
    used once, before the first step, in one order on all ranks. ``lent``: the memory of slots that others have made.
    """

    def __init__(self, session: Session, table: BufferTable, backend: str,
                 lent: Mapping[int, Tensor] | None = None) -> None:
        on_gpu = session.device.type == "cuda"
        if on_gpu != (backend == "nccl"):
            carries, has, use = ("CPU", "GPU", "nccl") if on_gpu else ("GPU", "CPU", "gloo")
            raise TransportError(f"--transport {backend} carries tensors in {carries} memory, but the stages run on a "
                                 f"{has}; use {use} or shared")
        self._staging_slots: list[Tensor | None] = [None] * len(table.staging_slots)
        self._table, self._device = table, session.device
        slots = {**dict(enumerate(allocate(table.slots, session.device))), **(lent or {})}
        self._unknown = TwoMessages(table, session.device, has_tags=backend != "nccl")
        self._slots: dict[Landing, Parcel] = {
            landing: view(slots[landing.slot], landing.layout) if landing.layout.is_known
            else self._unknown.parcels[landing] for landing in table.receives}
        self._channels = _connect(session, backend, {*(landing.peer for landing in table.receives),
                                                     *(message.peer for message in table.sends)})

    @property
    def sends_at_once(self) -> bool:
        return not self._table.sends

    @property
    def staging(self) -> Sequence[Tensor]:
        return [memory for memory in self._staging_slots if memory is not None]

    def slot(self, landing: Landing) -> Parcel:
        return self._slots[landing]

    def receiver(self, landing: Landing) -> Callable[[], Transfer]:
        if not landing.layout.is_known:
            return self._unknown.receiver(landing, self._begins(landing.peer, sends=False), self._finish(landing.peer))
        peer, on_gpu, (group, number) = landing.peer, self._device.type == "cuda", self._channels[landing.peer]
        begin, targets = group.recv, [[_carried(tensor)] for tensor in self._slots[landing].values()]

        def receive() -> Transfer:
            try:
                return _Begun(peer, [begin(target, number, 0) for target in targets], on_gpu)
            except RuntimeError as error:
                raise _gone(peer, error) from None

        return receive

    def sender(self, message: Staging) -> Callable[[Parcel], Transfer]:
        if not message.layout.is_known:
            return self._unknown.sender(message, self._begins(message.peer, sends=True), self._finish(message.peer))
        peer, on_gpu, (group, number) = message.peer, self._device.type == "cuda", self._channels[message.peer]
        begin, names = group.send, [part.name for part in message.layout.parts]

        def send(parcel: Parcel) -> Transfer:
            if not all(map(can_go_as_it_lies, parcel.values())):
                parcel = {name: place.copy_(parcel[name]) for name, place in self._staged(message).items()}
            try:
                return _Begun(peer, [begin([_carried(parcel[name])], number, 0) for name in names], on_gpu, parcel)
            except RuntimeError as error:
                raise _gone(peer, error) from None

        return send

    def close(self) -> None:
        self._slots.clear()
        self._staging_slots.clear()
        self._unknown.close()

    def _begins(self, peer: int, *, sends: bool) -> Callable[[Tensor, int], dist.Work]:
        """What starts sending one tensor to ``peer``, or receiving one from it, under a tag."""
        group, number = self._channels[peer]
        operation = group.send if sends else group.recv

        def begin(tensor: Tensor, tag: int) -> dist.Work:
            try:
                return operation([tensor], number, tag)
            except RuntimeError as error:
                raise _gone(peer, error) from None

        return begin

    def _finish(self, peer: int) -> Callable[[Sequence[dist.Work], object], Transfer]:
        on_gpu = self._device.type == "cuda"
        return lambda handles, sent: _Begun(peer, handles, on_gpu, sent)

    def _staged(self, message: Staging) -> Parcel:
        memory = self._staging_slots[message.slot]
        if memory is None:
            memory, = allocate([self._table.staging_slots[message.slot]], self._device)
            self._staging_slots[message.slot] = memory
        return view(memory, message.layout)


def _connect(session: Session, backend: str, peers: set[int]) -> dict[int, _Channel]:
    """Per peer, the channel for its messages, with the connection made: a byte has gone both ways."""
    lists = session.exchange(sorted(peers), "connecting")
    pairs = sorted({(min(rank, peer), max(rank, peer)) for rank, found in enumerate(lists) for peer in found})
    made: dict[int, _Channel] = {}
    byte = torch.zeros(1, dtype=torch.uint8, device=session.device)
    for pair in pairs:  # one order on all ranks
        group = session.new_group(pair, backend) if backend == "nccl" else session.members
        if session.rank not in pair:
            continue
        low, high = pair
        peer = high if session.rank == low else low
        session.doing(f"connecting to rank {peer}", [peer])
        for source in pair:
            if source == session.rank:
                dist.send(byte, session.place(peer), group)
            else:
                dist.recv(byte, session.place(peer), group)
        within = dist.group.WORLD if group is None else group
        assert within is not None
        made[peer] = _Channel(within, dist.get_group_rank(within, session.place(peer)))
    return made


def _carried(tensor: Tensor) -> Tensor:
    """``tensor``, which is contiguous, as one of the types that every process group carries: others go as bytes."""
    return tensor if tensor.dtype in CARRIED else tensor.view(-1).view(torch.uint8)


def _gone(peer: int, error: RuntimeError) -> ConnectionError:
    reason = str(error).splitlines()[0].split(". ")[0].removeprefix("[").partition("] ")[2] or type(error).__name__
    return ConnectionError(f"lost rank {peer} ({reason})")
