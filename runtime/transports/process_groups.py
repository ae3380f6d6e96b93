"""Transfers by ``torch.distributed``: gloo from CPU memory, NCCL from GPU memory.

Messages between two ranks arrive in the order of their sends, without tags: a checked program starts them in the same
order on both sides. (Otherwise NCCL would hang, and gloo would deliver the wrong tensor.) A message of several tensors
is sent as several transfers, without a packing copy.

A message of unknown shape is sent as a description, in the order of all messages, followed by its tensors. These have a
tag, so that an early receive of another message of the same pair cannot take them. A backend without tags (NCCL) must
post the receives of the tensors right after the description: there, posting such a receive waits for the description,
at the RECV in the program, where every checked program may wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from weft.runtime.plan.buffers import BufferTable, Landing, Staging
from weft.runtime.ranks.session import Session
from weft.runtime.transports.interface import Parcel, Transfer, TransportError
from weft.runtime.transports.tensors import (
    Growing,
    allocate,
    can_go_as_it_lies,
    describe,
    described,
    rest_of,
    view,
    whole,
    words_of,
)

LOOK = 20e-6  # seconds between two polls of a GPU transfer
#: The types that NCCL carries; gloo carries any.
CARRIED = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8,
                     torch.uint8, torch.bool})


class _Begun:
    """Started operations of a process group, and the tensors they send."""

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


#: Tensors, each with its tag.
_Tagged = Iterable[tuple[Tensor, int]]


class PeerChannel(NamedTuple):
    """A connection to rank ``peer``, which is ``number`` in ``group``."""

    peer: int
    group: dist.ProcessGroup
    number: int
    on_gpu: bool

    def send(self, tensors: _Tagged, sent: object) -> Transfer:
        """Start sending ``tensors``; ``sent`` is kept until they have been sent."""
        return self._begun(self.group.send, tensors, sent)

    def receive(self, tensors: _Tagged) -> Transfer:
        """Start receiving into ``tensors``."""
        return self._begun(self.group.recv, tensors)

    def _begun(self, operation: Callable[[list[Tensor], int, int], dist.Work], tensors: _Tagged, sent: object = None
               ) -> Transfer:
        try:
            return _Begun(self.peer, [operation([tensor], self.number, tag) for tensor, tag in tensors], self.on_gpu,
                          sent)
        except RuntimeError as error:
            raise _gone(self.peer, error) from None


class ProcessGroupTransport:
    """The messages of one rank over the session's process group (gloo) or one group per pair of ranks (NCCL).

    A group per pair has its own stream, so a waiting receive blocks only its pair. Groups are created, and used once,
    before the first step, in the same order on all ranks. ``lent``: the memory of slots allocated elsewhere.
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
            return self._unknown.receiver(landing, self._channels[landing.peer])
        targets = [(_carried(tensor), 0) for tensor in self._slots[landing].values()]
        return partial(self._channels[landing.peer].receive, targets)

    def sender(self, message: Staging) -> Callable[[Parcel], Transfer]:
        if not message.layout.is_known:
            return self._unknown.sender(message, self._channels[message.peer])
        channel, names = self._channels[message.peer], [part.name for part in message.layout.parts]

        def send(parcel: Parcel) -> Transfer:
            if not all(map(can_go_as_it_lies, parcel.values())):
                parcel = {name: place.copy_(parcel[name]) for name, place in self._staged(message).items()}
            return channel.send([(_carried(parcel[name]), 0) for name in names], parcel)

        return send

    def close(self) -> None:
        self._slots.clear()
        self._staging_slots.clear()
        self._unknown.close()

    def _staged(self, message: Staging) -> Parcel:
        memory = self._staging_slots[message.slot]
        if memory is None:
            memory, = allocate([self._table.staging_slots[message.slot]], self._device)
            self._staging_slots[message.slot] = memory
        return view(memory, message.layout)


def _connect(session: Session, backend: str, peers: set[int]) -> dict[int, PeerChannel]:
    """The connected channel to each peer: a byte has gone both ways."""
    lists = session.exchange(sorted(peers), "connecting")
    pairs = sorted({(min(rank, peer), max(rank, peer)) for rank, found in enumerate(lists) for peer in found})
    made: dict[int, PeerChannel] = {}
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
        made[peer] = PeerChannel(peer, within, dist.get_group_rank(within, session.place(peer)),
                                 session.device.type == "cuda")
    return made


def _carried(tensor: Tensor) -> Tensor:
    """The contiguous ``tensor`` in a dtype that process groups support; other dtypes are sent as bytes."""
    return tensor if tensor.dtype in CARRIED else tensor.view(-1).view(torch.uint8)


def _gone(peer: int, error: RuntimeError) -> ConnectionError:
    reason = str(error).splitlines()[0].split(". ")[0].removeprefix("[").partition("] ")[2] or type(error).__name__
    return ConnectionError(f"lost rank {peer} ({reason})")


class TwoMessages:
    """The messages of unknown shapes of a rank with ``table``, whose stages run on ``device``.

    ``has_tags``: whether the backend distinguishes messages of one pair by a tag.
    """

    def __init__(self, table: BufferTable, device: torch.device, has_tags: bool) -> None:
        self._device, self._has_tags = device, has_tags
        landings = [landing for landing in table.receives if not landing.layout.is_known]
        messages = [message for message in table.sends if not message.layout.is_known]
        self._tags: dict[Landing | Staging, int] = {**_tags(landings), **_tags(messages)}
        self.slots = {landing.slot: Growing(device) for landing in landings}
        self.staging = {message.slot: Growing(device) for message in messages}
        self.parcels: Mapping[Landing, dict[str, Tensor]] = {landing: {} for landing in landings}

    def receiver(self, landing: Landing, channel: PeerChannel) -> Callable[[], Transfer]:
        """A function that posts a receive of ``landing``."""
        words = torch.zeros(words_of(landing.layout), dtype=torch.int64, device=self._device)
        tag, slot, parcel = self._tags[landing], self.slots[landing.slot], self.parcels[landing]

        def receive() -> Transfer:
            heading = channel.receive([(words, 0)])

            def take() -> Transfer:
                heading.wait()
                said, rest = words.tolist(), torch.empty(0, dtype=torch.int64, device=self._device)
                if said[0]:
                    rest = rest.new_empty(said[0])
                    channel.receive([(rest, tag)]).wait()
                slot.land(described(landing.layout, said, rest.tolist()), parcel)
                return channel.receive([(_bytes(tensor), tag) for tensor in parcel.values() if tensor.numel()])

            return _Taken(take) if self._has_tags else take()

        return receive

    def sender(self, message: Staging, channel: PeerChannel) -> Callable[[Parcel], Transfer]:
        """A function that starts sending a parcel as ``message``."""
        tag, staging = self._tags[message], self.staging[message.slot]

        def send(parcel: Parcel) -> Transfer:
            parcel = contiguous(parcel, staging)
            rest = rest_of(message.layout, parcel)
            said = [0] * words_of(message.layout)
            describe(message.layout, parcel, said, (len(rest), 0))
            heading, *behind = (torch.tensor(numbers, device=self._device) for numbers in (said, rest) if numbers)
            behind += [_bytes(tensor) for part in message.layout.parts
                       if (tensor := parcel.get(part.name)) is not None and tensor.numel()]
            return channel.send([(heading, 0), *((tensor, tag) for tensor in behind)], (heading, behind))

        return send

    def close(self) -> None:
        """Release the buffers."""
        self.slots, self.staging, self.parcels = {}, {}, {}


class _Taken:
    """A receive whose tensors are requested at its wait."""

    __slots__ = ("_take",)

    def __init__(self, take: Callable[[], Transfer]) -> None:
        self._take = take

    def wait(self) -> None:
        self._take().wait()


def contiguous(parcel: Parcel, staging: Growing) -> Parcel:
    """``parcel``, or, if one of its tensors is not contiguous, a copy in ``staging``."""
    if all(map(can_go_as_it_lies, parcel.values())):
        return parcel
    memory, start, found = staging.room(sum(whole(tensor.nbytes) for tensor in parcel.values())), 0, {}
    for name, tensor in parcel.items():
        place = memory[start:start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        found[name], start = place.copy_(tensor), start + whole(tensor.nbytes)
    return found


def _bytes(tensor: Tensor) -> Tensor:
    """``tensor``, which is contiguous, as bytes, which process groups carry for every type."""
    return tensor.view(-1).view(torch.uint8)


def _tags(entries: Sequence[Landing | Staging]) -> dict[Landing | Staging, int]:
    """A tag for each message with a peer in one direction, by their order: the same on both ends."""
    counts: dict[int, int] = {}
    found: dict[Landing | Staging, int] = {}
    for entry in sorted(entries, key=lambda e: e.step):
        found[entry] = counts[entry.peer] = counts.get(entry.peer, 0) + 1
    return found
