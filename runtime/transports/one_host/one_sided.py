"""One-sided transfers: the sender writes a message into the receiver's slot; two counters track progress.

For each direction between two ranks, the receiver counts the *posted* receives and the sender the *written* messages;
each counter has one writer. Message n may be written when more than n receives are posted, and read when more than n
messages are written. As both ends start their messages in the same order, and every step has the same messages, the
counters identify them. The memory and the detection of ended peers are provided by
:mod:`weft.runtime.transports.one_host.shared_memory` (tests use threads).

A task that cannot run at once is left to a thread, so that a computing rank does not delay others: a message whose slot
is not free yet, and on a GPU any task that has to wait for earlier kernels.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from weft.runtime.plan.buffers import Landing, Staging
from weft.runtime.transports.interface import Parcel, Transfer
from weft.runtime.transports.one_host.one_sided_reads import Reads

LOOKS = 50  # polls before sleeping in between
NAP = 50e-6  # seconds of the first sleep
LONGEST_NAP = 500e-6
PULSE = 0.05  # seconds between two checks whether the peer is alive


#: While a profiler records the memory of one thread: the times and bytes of releases in the transports' threads.
RELEASED: list[tuple[int, int]] | None = None


@contextmanager
def releases() -> Iterator[list[tuple[int, int]]]:
    """Inside, records the releases of memory in the transports' threads: times (``time.time_ns``) and bytes."""
    global RELEASED
    RELEASED = found = list[tuple[int, int]]()
    try:
        yield found
    finally:
        RELEASED = None


class Lane(Protocol):
    """One direction between two ranks. ``posted`` is written only by the receiver, ``written`` and ``moment``
    only by the sender; writes are seen in their order."""

    posted: int
    written: int

    def arrival(self, number: int) -> float:
        """The time at which message ``number`` arrives over an emulated link; otherwise 0."""

    def leave(self, number: int, size: int) -> None:
        """Record that message ``number``, of ``size`` bytes, leaves now."""

    def sleep(self, number: int, seconds: float) -> None:
        """Sleep until message ``number`` is written, for at most ``seconds``."""


class OneSided:
    """The messages of one rank.

    ``slots``: this rank's slots. ``remote``: the receivers' slots for its sends. ``lanes_in``, ``lanes_out``: by peer.
    ``alive(peer)``: whether a peer's process still runs. ``now``: the clock of the lanes. ``closed``: called after
    closing. ``reads``: the messages of unknown shapes, which are not in ``slots`` and ``remote``.
    """

    def __init__(self, slots: Mapping[Landing, Parcel], remote: Mapping[Staging, Parcel],
                 lanes_in: Mapping[int, Lane], lanes_out: Mapping[int, Lane], alive: Callable[[int], bool],
                 now: Callable[[], float] = time.perf_counter, closed: Callable[[], None] = lambda: None,
                 reads: Reads | None = None) -> None:
        self._slots, self._remote, self._in, self._out, self._reads = slots, remote, lanes_in, lanes_out, reads
        self.alive, self.now, self._on_close = alive, now, closed
        self._posted = dict.fromkeys(lanes_in, 0)
        self._started = dict.fromkeys(lanes_out, 0)
        self._late: deque[_Leaving | _Posting] = deque()
        self._wake, self._closed = threading.Condition(), False
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None  # of the thread: the rank raises it at its next wait
        self._stream: torch.cuda.Stream | None = None

    @property
    def sends_at_once(self) -> bool:
        """See :class:`~weft.runtime.transports.interface.Transport`; on a GPU a message waits for kernels before it."""
        on_gpu = any(tensor.is_cuda for parcel in self._remote.values() for tensor in parcel.values())
        return not on_gpu and (self._reads is None or not self._reads.offers_any)

    @property
    def staging(self) -> Sequence[torch.Tensor]:
        return ()

    def slot(self, landing: Landing) -> Parcel:
        return self._slots[landing] if landing.layout.is_known else self._unknown.parcels[landing]

    def receiver(self, landing: Landing) -> Callable[[], Transfer]:
        peer, lane, slot = landing.peer, self._in[landing.peer], self._slots.get(landing, {})
        take = None if landing.layout.is_known else partial(self._unknown.take, landing)

        def receive() -> Transfer:
            number = self._posted[peer]
            self._posted[peer] = number + 1
            self._do(_Posting(lane, number, _kernels_so_far(slot)))
            return _Arriving(self, lane, peer, number, take)

        return receive

    def sender(self, message: Staging) -> Callable[[Parcel], Transfer]:
        peer, lane, put, is_over = message.peer, self._out[message.peer], self._writer(message), lambda: True
        if not message.layout.is_known:
            put, is_over = partial(self._unknown.offer, message), partial(self._unknown.is_taken, message)

        def send(parcel: Parcel) -> Transfer:
            number = self._started[peer]
            self._started[peer] = number + 1
            leaving = _Leaving(lane, number, _kernels_so_far(parcel), self, peer, put, is_over, parcel)
            self._do(leaving)
            return leaving

        return send

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        """The stream for copies beside the kernels."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._stream

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
        self._slots, self._remote, self._in, self._out = {}, {}, {}, {}  # lets the peers' memory go too
        if self._reads is not None:
            self._reads.close()
        self._on_close()

    @property
    def _unknown(self) -> Reads:
        assert self._reads is not None  # made if there are such messages
        return self._reads

    def _writer(self, message: Staging) -> Callable[[Parcel], int]:
        """A function that writes a parcel into the receiver's slot, and returns its bytes."""
        target = self._remote.get(message, {})
        device = next((place.device for place in target.values()), torch.device("cpu"))

        def write(parcel: Parcel) -> int:
            if device.type == "cuda":
                stream = self.stream(device)
                # A new thread's device is GPU 0: leaving a stream would return there and create a context on it.
                with torch.cuda.device(device), torch.cuda.stream(stream):
                    _copy(parcel, target)
                stream.synchronize()
            else:
                _copy(parcel, target)
            return message.layout.size

        return write

    def wait(self, done: Callable[[], bool], peer: int, sleep: Callable[[float], None] | None = None) -> None:
        """Wait until ``done()``. Raises ``ConnectionError`` if ``peer`` ends first, and the thread's own exception.

        ``sleep(seconds)`` ends early when it is done; without it this polls.
        """
        for _ in range(LOOKS):
            if done():
                return
            time.sleep(0)
        nap, looked = NAP, time.monotonic()
        while not done():
            if self._failure is not None:
                raise self._failure
            if sleep is not None:
                sleep(PULSE)
            else:
                time.sleep(nap)
                nap = min(1.5 * nap, LONGEST_NAP)
            if time.monotonic() - looked > PULSE:
                looked = time.monotonic()
                if not self.alive(peer) and not done():
                    raise ConnectionError(f"lost rank {peer} (its process has ended)")

    def _do(self, task: _Leaving | _Posting) -> None:
        """Run ``task`` now if possible, otherwise in the thread; in order on each lane."""
        with self._wake:
            waiting = any(type(other) is type(task) and other.lane is task.lane for other in self._late)
            if not waiting and task.try_now():
                return
            self._late.append(task)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_thread, name="weft transport", daemon=True)
                self._thread.start()
            self._wake.notify()

    def _run_thread(self) -> None:
        try:
            self._do_late()
        except Exception as error:
            self._failure = error

    def _do_late(self) -> None:
        nap = NAP
        while True:
            with self._wake:
                while not self._late and not self._closed:
                    self._wake.wait()
                if self._closed:
                    return
                blocked: set[tuple[type, int]] = set()
                for task in list(self._late):
                    key = type(task), id(task.lane)
                    if key in blocked or not task.try_now():
                        blocked.add(key)
                        continue
                    self._late.remove(task)
                    nap = NAP
            time.sleep(nap)
            nap = min(1.5 * nap, LONGEST_NAP)


@dataclass(frozen=True, slots=True)
class _Arriving:
    transport: OneSided
    lane: Lane
    peer: int
    number: int
    take: Callable[[], None] | None  # reads the message, where the sender cannot write it

    def wait(self) -> None:
        self.transport.wait(lambda: self.lane.written > self.number, self.peer, partial(self.lane.sleep, self.number))
        early = self.lane.arrival(self.number) - self.transport.now()
        while early > 0:
            time.sleep(early)
            early = self.lane.arrival(self.number) - self.transport.now()
        if self.take is not None:
            self.take()


@dataclass(slots=True, eq=False)
class _Posting:
    lane: Lane
    number: int
    after: torch.cuda.Event | None  # the last kernel that may read what was in the slot

    def try_now(self) -> bool:
        """Report the slot as free, if it is."""
        if not _over(self.after):
            return False
        self.lane.posted = self.number + 1
        return True


@dataclass(slots=True, eq=False)
class _Leaving:
    lane: Lane
    number: int
    after: torch.cuda.Event | None  # the kernel that computes it
    transport: OneSided
    peer: int
    put: Callable[[Parcel], int]  # writes the message, or publishes its address; returns its bytes
    is_over: Callable[[], bool]  # once it is put
    parcel: Parcel | None  # None once it is put

    def try_now(self) -> bool:
        """Deliver the message, if its slot is free."""
        if self.lane.posted <= self.number or not _over(self.after):
            return False
        assert self.parcel is not None
        self.lane.leave(self.number, self.put(self.parcel))
        self.lane.written = self.number + 1
        held = [] if RELEASED is None or threading.current_thread() is threading.main_thread() else [
            tensor.untyped_storage() for tensor in self.parcel.values()]
        self.parcel = None
        for memory in held:
            if RELEASED is not None and _users(memory) == 1:  # no other user
                RELEASED.append((time.time_ns(), memory.nbytes()))
        return True

    def wait(self) -> None:
        self.transport.wait(lambda: self.parcel is None and self.is_over(), self.peer)


def _users(memory: torch.UntypedStorage) -> int:
    """The number of users of ``memory``; 0 where this torch cannot tell."""
    count = getattr(torch._C, "_storage_Use_Count", None)  # private
    return 0 if count is None else count(memory._cdata)


def _copy(parcel: Parcel, target: Parcel) -> None:
    for name, place in target.items():
        place.copy_(parcel[name], non_blocking=True)


def _kernels_so_far(parcel: Parcel) -> torch.cuda.Event | None:
    if not any(tensor.is_cuda for tensor in parcel.values()):
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event


def _over(event: torch.cuda.Event | None) -> bool:
    return event is None or bool(event.query())  # type: ignore[no-untyped-call]
