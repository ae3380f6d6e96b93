"""One-sided transfers between processes of one host, through shared memory.

Each rank allocates one anonymous shared memory (``memfd``: it has no name, and is freed with the last process that maps
it): counters for the messages of each peer, then its slots. Its peers map it and write there. On GPUs the slots are in
the owner's GPU memory and peers open them by CUDA IPC, while the counters stay in CPU memory; several ranks may use one
GPU.

The order of counters and data relies on the processor: stores become visible in their order on x86-64, which is
required.
"""

from __future__ import annotations

import mmap
import os
import platform
import secrets
import time
from array import array
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from weft.runtime.plan.buffers import BufferTable, Landing, Staging
from weft.runtime.ranks.session import Session
from weft.runtime.transports.interface import Parcel, TransportError
from weft.runtime.transports.one_host.futex import Sleeper
from weft.runtime.transports.one_host.gpu_slots import GpuSlots, IpcSlots
from weft.runtime.transports.one_host.one_sided import OneSided
from weft.runtime.transports.one_host.one_sided_reads import Reads, note_words
from weft.runtime.transports.one_host.peers import Processes
from weft.runtime.transports.one_host.reach import OwnHost, can_read
from weft.runtime.transports.tensors import ALIGNED, view, whole

LANE = 2 * ALIGNED  # bytes: a cache line that the receiver writes, and one that the sender writes


class _Counters:
    """The :class:`~weft.runtime.transports.one_host.one_sided.Lane` at ``offset`` of a shared memory.

    The receiver's line holds ``posted``; the sender's ``written``. With a ``link`` (latency, bandwidth), messages'
    arrival times lie in ``moments``, one for each of the last messages: more than are ever posted at once.
    """

    def __init__(self, memory: memoryview, offset: int, moments: memoryview[float] | None,
                 link: tuple[float, float] | None, now: Callable[[], float]) -> None:
        self._posted = memory[offset:offset + 8].cast("q")
        self._written = memory[offset + ALIGNED:offset + ALIGNED + 8].cast("q")
        self._moments, self._link, self._now = moments, link, now
        self._sleeper = Sleeper(memory, offset + ALIGNED)
        self._free = 0.0  # when the emulated link has carried the previous messages

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
        self._sleeper.wake()

    def sleep(self, number: int, seconds: float) -> None:
        written = self._written[0]
        if written <= number:
            self._sleeper.sleep(written, seconds)

    def arrival(self, number: int) -> float:
        return 0.0 if self._moments is None else self._moments[number % len(self._moments)]

    def leave(self, number: int, size: int) -> None:
        if self._moments is None or self._link is None:
            return
        latency, bandwidth = self._link
        self._free = max(self._now(), self._free) + size / bandwidth
        self._moments[number % len(self._moments)] = self._free + latency


class _Note:
    """The :class:`~weft.runtime.transports.one_host.one_sided_reads.Note` of ``count`` words at ``offset`` of a shared
    memory: the receiver's cache line, then the sender's."""

    def __init__(self, memory: memoryview, offset: int, count: int) -> None:
        self._taken = memory[offset:offset + 8].cast("q")
        self._words = memory[offset + ALIGNED:offset + ALIGNED + 8 * count].cast("q")

    @property
    def taken(self) -> int:
        return self._taken[0]

    @taken.setter
    def taken(self, count: int) -> None:
        self._taken[0] = count

    def write(self, words: Iterable[int]) -> None:
        """Write ``words``, as many as the note has."""
        self._words[:] = array("q", words)

    def read(self) -> list[int]:
        """The words written last."""
        return self._words.tolist()


class _Shape:
    """The layout of the memory of a rank with ``table``: the same on all ranks."""

    def __init__(self, table: BufferTable, world: int, on_gpu: bool) -> None:
        self.moments = max(1, len(table.receives))  # a peer cannot have more messages written and not yet read
        self.lanes = ALIGNED  # a token comes first
        self.arrivals = self.lanes + world * LANE
        at = self.arrivals + whole(world * self.moments * 8)
        self.slots = []
        for size in () if on_gpu else table.slots:
            self.slots.append(at)
            at += whole(size)
        self.notes = {}
        for landing in table.receives:
            if not landing.layout.is_known:
                self.notes[landing] = at
                at += ALIGNED + whole(8 * note_words(landing))
        self.size = at


def share(session: Session, tables: Sequence[BufferTable], link: tuple[float, float] | None = None,
          gpu_slots: Callable[[Session, Sequence[BufferTable]], GpuSlots] = IpcSlots) -> OneSided:
    """The transport of this rank; all ranks must call it together. ``link`` is an emulated link's latency in seconds
    and bandwidth in bytes per second. ``gpu_slots`` makes the slots of stages that run on GPUs. Raises
    :class:`~weft.runtime.transports.interface.TransportError`, on all ranks, where memory cannot be shared."""
    rank, table = session.rank, tables[session.rank]
    if not can_share():
        raise TransportError("--transport shared needs Linux on x86-64; use gloo or nccl")
    if link is not None and session.device.type == "cuda":
        raise TransportError("--transport emulated is for stages that run on a CPU")
    memories = _Memories(session, tables, link, gpu_slots)
    targets = matching(rank, tables)
    slots = {landing: memories.slot(rank, landing) for landing in table.receives if landing.layout.is_known}
    remote = {message: memories.slot(message.peer, landing) for message, landing in targets.items()
              if landing.layout.is_known}
    reads = Reads(session.device, {landing: memories.note(rank, landing) for landing in table.receives
                                   if not landing.layout.is_known},
                  {message: memories.note(message.peer, landing) for message, landing in targets.items()
                   if not landing.layout.is_known}, OwnHost(memories.pids, memories.readers))
    processes = Processes(memories.pids)
    return OneSided(slots, remote, {peer: memories.lane(rank, peer) for peer in memories.pids},
                    {peer: memories.lane(peer, rank) for peer in memories.pids}, processes.alive,
                    closed=processes.close, reads=reads)


def can_share() -> bool:
    """Whether this machine's processes can share memory in this way."""
    return platform.machine().lower() in ("x86_64", "amd64") and hasattr(os, "memfd_create")


class _Memories:
    """The shared memory of this rank and of its peers, mapped. All ranks create theirs together, and all fail if one
    does.

    ``pids`` are the peers' processes; ``readers``, the peers that may read all of this process's memory.
    """

    def __init__(self, session: Session, tables: Sequence[BufferTable], link: tuple[float, float] | None,
                 gpu_slots: Callable[[Session, Sequence[BufferTable]], GpuSlots]) -> None:
        self._tables, self._link, self._world = tables, link, session.world
        rank, table = session.rank, tables[session.rank]
        self._rank, self._gpu_slots = rank, None if session.device.type == "cpu" else gpu_slots(session, tables)
        token, own, file, trouble = secrets.token_bytes(16), mmap.mmap(-1, mmap.PAGESIZE), -1, ""
        try:
            file, own = _own_memory(rank, self._shape(rank).size, token)
        except TransportError as error:
            trouble = str(error)
        address = torch.frombuffer(own, dtype=torch.uint8).data_ptr()
        found = session.exchange((trouble, os.getpid(), file, token, address), "sharing memory")
        if any(said for said, *_ in found):
            _close(file)  # this frees the memory
        _require_none(said for said, *_ in found)
        peers = {landing.peer for landing in table.receives} | {message.peer for message in table.sends}
        self.pids = {peer: found[peer][1] for peer in sorted(peers)}
        self._memories = {rank: memoryview(own)}
        readable = set()
        for peer, pid in self.pids.items():
            _, _, its_file, its_token, its_address = found[peer]
            try:
                self._memories[peer] = memoryview(_map(peer, pid, its_file, its_token, self._shape(peer)))
            except TransportError as error:
                trouble = str(error)
            if can_read(pid, its_address, its_token):
                readable.add(peer)
        mapped = session.exchange((trouble, readable), "sharing memory")
        _close(file)  # all ranks have mapped the memory they need
        _require_none(said for said, _ in mapped)
        self.readers = {peer for peer in self.pids if rank in mapped[peer][1]}

    def slot(self, owner: int, landing: Landing) -> Parcel:
        """Where ``landing`` lands in the memory of rank ``owner``."""
        if self._gpu_slots is not None:
            return view(self._gpu_slots.at(owner, landing.slot), landing.layout)
        return view(_bytes(self._memories[owner], self._shape(owner).slots[landing.slot], landing.layout.size),
                    landing.layout)

    def note(self, owner: int, landing: Landing) -> _Note:
        """The note of ``landing``, in the memory of rank ``owner``."""
        return _Note(self._memories[owner], self._shape(owner).notes[landing], note_words(landing))

    def lane(self, owner: int, source: int) -> _Counters:
        """The counters of the messages from rank ``source`` to rank ``owner``, in the owner's memory."""
        shape, memory = self._shape(owner), self._memories[owner]
        first = shape.arrivals + 8 * source * shape.moments
        moments: memoryview[float] | None = None
        if self._link is not None:
            moments = memory[first:first + 8 * shape.moments].cast("d")
        return _Counters(memory, shape.lanes + source * LANE, moments, self._link, time.perf_counter)

    def _shape(self, owner: int) -> _Shape:
        return _Shape(self._tables[owner], self._world, self._gpu_slots is not None)


def _bytes(memory: memoryview, start: int, size: int) -> Tensor:
    """``size`` bytes of ``memory``; may be 0, for empty messages."""
    return torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=start) if size else torch.empty(
        0, dtype=torch.uint8)


def _require_none(troubles: Iterable[str]) -> None:
    """Raise the first trouble of any rank, if there is one."""
    if (trouble := next(filter(None, troubles), None)) is not None:
        raise TransportError(trouble)


def _own_memory(rank: int, size: int, token: bytes) -> tuple[int, mmap.mmap]:
    """A new file of ``size`` bytes in memory, and its mapping, which begins with ``token``."""
    file = -1
    try:
        file = os.memfd_create("weft")
        os.posix_fallocate(file, 0, size)
        own = mmap.mmap(file, size)
    except OSError as error:
        _close(file)
        raise TransportError(f"--transport shared: rank {rank} cannot have {size} bytes of shared memory: "
                             f"{error.strerror}") from None
    own[:len(token)] = token
    return file, own


def _close(file: int) -> None:
    """Close ``file``, if there is one (-1: none)."""
    if file >= 0:
        os.close(file)


def matching(rank: int, tables: Sequence[BufferTable]) -> dict[Staging, Landing]:
    """For each message that ``rank`` sends, its landing on the peer."""
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
