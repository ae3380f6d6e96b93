"""One-sided transfers between processes of one host, through memory that they share.

Each rank makes one piece of anonymous shared memory (``memfd``: it has no name, and goes when the last process that
maps it goes, however that ends): a page of counters for what comes from each peer, then its slots. Its peers map it and
write there. On GPUs the slots lie in the owner's GPU memory and peers open them by CUDA IPC, the counters stay in CPU
memory; several ranks may use one GPU. (The GPU path has not run on a GPU yet.)

Counters and data are ordered by the processor alone: stores are seen in their order on x86-64, which is asked for.
"""

from __future__ import annotations

import mmap
import os
import platform
import secrets
import select
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from weft.runtime.plan.buffers import BufferTable, Landing, Staging
from weft.runtime.ranks.session import Session
from weft.runtime.transports import Parcel, TransportError
from weft.runtime.transports.memory import ALIGNED, allocate, view, whole
from weft.runtime.transports.one_sided import OneSided

__all__ = ["matching", "share"]

LANE = 2 * ALIGNED  # bytes: a line for what the receiver writes, and one for what the sender writes


class _Counters:
    """The :class:`~weft.runtime.transports.one_sided.Lane` at ``offset`` of a shared memory.

    The receiver's line holds ``posted``; the sender's ``written``. With a ``link`` (latency, bandwidth), messages'
    arrival times lie in ``moments``, one for each of the last messages: more than are ever posted at once.
    """

    def __init__(self, memory: memoryview, offset: int, moments: memoryview[float] | None,
                 link: tuple[float, float] | None, now: Callable[[], float]) -> None:
        self._posted = memory[offset:offset + 8].cast("q")
        self._written = memory[offset + ALIGNED:offset + ALIGNED + 8].cast("q")
        self._moments, self._link, self._now = moments, link, now
        self._free = 0.0  # when the emulated link has carried what left before

    @property
    def posted(self) -> int:
        return self._posted[0]

    @posted.setter
    def posted(self, count: int) -> None:
        self._posted[0] = count

    @property
    def written(self) -> int:
        return self._written[0]

    @written.setter
    def written(self, count: int) -> None:
        self._written[0] = count

    def arrival(self, number: int) -> float:
        return 0.0 if self._moments is None else self._moments[number % len(self._moments)]

    def leave(self, number: int, size: int) -> None:
        if self._moments is None or self._link is None:
            return
        latency, bandwidth = self._link
        self._free = max(self._now(), self._free) + size / bandwidth
        self._moments[number % len(self._moments)] = self._free + latency


class _Shape:
    """What lies where in the memory of a rank with ``table``: the same on all ranks."""

    def __init__(self, table: BufferTable, world: int, on_gpu: bool) -> None:
        self.moments = max(1, len(table.receives))  # a peer cannot have more messages written and not yet read
        self.lanes = ALIGNED  # a token stands before
        self.arrivals = self.lanes + world * LANE
        at = self.arrivals + whole(world * self.moments * 8)
        self.slots = []
        for size in () if on_gpu else table.slots:
            self.slots.append(at)
            at += whole(size)
        self.size = at


def share(session: Session, tables: Sequence[BufferTable], link: tuple[float, float] | None) -> OneSided:
    """The transport of this rank; all ranks must call it together. ``link`` is an emulated link's latency in seconds
    and bandwidth in bytes per second. Raises :class:`TransportError` where memory cannot be shared."""
    rank, table, on_gpu = session.rank, tables[session.rank], session.device.type == "cuda"
    if platform.machine().lower() not in ("x86_64", "amd64") or not hasattr(os, "memfd_create"):
        raise TransportError("--transport shared needs Linux on x86-64; use gloo or nccl")
    if link is not None and on_gpu:
        raise TransportError("--transport emulated is for stages that run on a CPU")
    shape, token = _Shape(table, session.world, on_gpu), secrets.token_bytes(16)
    file = os.memfd_create("weft")
    try:
        os.posix_fallocate(file, 0, shape.size)
    except OSError as error:
        raise TransportError(f"--transport shared: rank {rank} cannot have {shape.size} bytes of shared memory: "
                             f"{error.strerror}") from None
    own = mmap.mmap(file, shape.size)
    own[:len(token)] = token
    gpu_slots = allocate(table.slots, session.device) if on_gpu else []
    found: list[Any] = session.exchange((os.getpid(), file, token, _gpu_handles(gpu_slots, table)), "sharing memory")
    peers_slots = _PeersSlots(rank, {owner: handles for owner, (*_, handles) in enumerate(found)})

    peers = {e.peer for e in table.receives} | {e.peer for e in table.sends}
    memories = {rank: memoryview(own)}
    for peer in sorted(peers):
        pid, its_file, its_token, _ = found[peer]
        memories[peer] = memoryview(_map(peer, pid, its_file, its_token, _Shape(tables[peer], session.world, on_gpu)))

    def slot(owner: int, landing: Landing) -> Parcel:
        if on_gpu:
            memory = gpu_slots[landing.slot] if owner == rank else peers_slots[owner, landing.slot]
            return view(memory, landing.layout)
        its = tables[owner]
        offset = _Shape(its, session.world, on_gpu).slots[landing.slot]
        return view(torch.frombuffer(memories[owner], dtype=torch.uint8, count=landing.layout.size, offset=offset),
                    landing.layout)

    def lane(owner: int, source: int) -> _Counters:
        its, memory = _Shape(tables[owner], session.world, on_gpu), memories[owner]
        first = its.arrivals + 8 * source * its.moments
        moments: memoryview[float] | None = None
        if link is not None:
            moments = memory[first:first + 8 * its.moments].cast("d")
        return _Counters(memory, its.lanes + source * LANE, moments, link, time.perf_counter)

    slots = {landing: slot(rank, landing) for landing in table.receives}
    remote = {message: slot(message.peer, landing) for message, landing in matching(rank, tables).items()}
    session.barrier("to share memory")
    os.close(file)  # all have mapped what they need
    processes = _Processes({peer: found[peer][0] for peer in peers})
    return OneSided(slots, remote, {p: lane(rank, p) for p in peers}, {p: lane(p, rank) for p in peers},
                    processes.alive, closed=processes.close)


def matching(rank: int, tables: Sequence[BufferTable]) -> dict[Staging, Landing]:
    """For each message that ``rank`` sends, where it lands on its peer."""
    landings = {(landing.what, peer): landing for peer, table in enumerate(tables) for landing in table.receives
                if landing.peer == rank}
    return {message: landings[message.what, message.peer] for message in tables[rank].sends}


def _map(peer: int, pid: int, file: int, token: bytes, shape: _Shape) -> mmap.mmap:
    trouble = (f"--transport shared: rank {peer}'s memory cannot be opened from here: the ranks must be processes of "
               "one user on one host (and in one container)")
    try:
        with open(f"/proc/{pid}/fd/{file}", "r+b") as opened:
            memory = mmap.mmap(opened.fileno(), shape.size)
    except (OSError, ValueError):
        raise TransportError(trouble) from None
    if memory[:len(token)] != token:
        raise TransportError(trouble)
    return memory


class _Processes:
    """Those of the peers, by handles that do not mistake a later process for one of them."""

    def __init__(self, pids: Mapping[int, int]) -> None:
        self._handles = {peer: os.pidfd_open(pid) for peer, pid in pids.items()}
        self._polls = {peer: select.poll() for peer in pids}
        for peer, handle in self._handles.items():
            self._polls[peer].register(handle, select.POLLIN)

    def alive(self, peer: int) -> bool:
        """Whether the process of ``peer`` still runs."""
        return not self._polls[peer].poll(0)

    def close(self) -> None:
        """Give the handles back."""
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()


def _gpu_handles(slots: Sequence[Tensor], table: BufferTable) -> dict[tuple[int, int], Any]:
    """By slot and peer, what opens it there. PyTorch counts who has a tensor: it wants each handle opened once, no more
    and no less, or it complains at the end that memory was let go while others had it."""
    from torch.multiprocessing.reductions import reduce_tensor

    writers = sorted({(landing.slot, landing.peer) for landing in table.receives}) if slots else []
    return {(slot, peer): reduce_tensor(slots[slot]) for slot, peer in writers}  # type: ignore[no-untyped-call]


class _PeersSlots(dict[tuple[int, int], Tensor]):
    """Slots in the memory of peers, by owner and number, each opened when it is first asked for."""

    def __init__(self, rank: int, handles: dict[int, dict[tuple[int, int], Any]]) -> None:
        super().__init__()
        self._rank, self._handles = rank, handles

    def __missing__(self, key: tuple[int, int]) -> Tensor:
        owner, slot = key
        build, arguments = self._handles[owner][slot, self._rank]
        self[key] = opened = build(*arguments)
        assert isinstance(opened, Tensor)
        return opened
