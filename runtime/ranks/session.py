"""This process as one rank among others: the process group, the clock all ranks share, the watchdog."""

from __future__ import annotations

import contextlib
import datetime
import signal
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from weft.runtime.ranks.allocator import keep_freed_memory
from weft.runtime.ranks.gpus import backends_for
from weft.runtime.ranks.health import RunError
from weft.runtime.ranks.joining import NotJoined, find_others
from weft.runtime.ranks.watch import CLOSED, Watch, output_is_closed
from weft.runtime.ranks.words import Activity

PINGS = 20
RESERVE = 1024**3  # bytes
_BOOT = Path("/proc/sys/kernel/random/boot_id")  # differs between hosts
Value = TypeVar("Value")


class SessionError(ValueError):
    """A user's mistake found while the ranks are joined: all of them end with its sentence and exit code 2."""


@dataclass
class Session:
    """``rank`` of the ``world`` ranks of a plan; ``device`` holds the tensors; ``offset`` + ``time.perf_counter()`` is
    the time on the first process's clock. ``transport`` carries messages (:mod:`weft.runtime.transports`); empty: the
    device's default. ``reserve``: bytes of the device that a problem's capacities leave out, for early messages.

    The plan runs in ``replicas`` copies, of which this is number ``replica``, each with a part of the batch; each
    replica is ``peers`` copies, of which this is ``peer``, with shares of the parameters. Processes 0 to ``world`` - 1
    are the first copy, and so on. Rank numbers are relative to the copy.
    """

    rank: int
    world: int
    device: torch.device
    watch: Watch
    offset: float
    transport: str = ""
    reserve: int = RESERVE
    replica: int = 0
    replicas: int = 1
    peer: int = 0
    peers: int = 1
    groups: dict[tuple[int, ...], dist.ProcessGroup | None] = field(default_factory=dict)
    meetings: dict[tuple[int, ...], dist.ProcessGroup | None] = field(default_factory=dict)
    members: dist.ProcessGroup | None = None  # of all its processes; ``None``: the default group
    #: The numbers of its processes in ``torch.distributed``; empty: the same as here.
    places: tuple[int, ...] = ()
    _counterparts: dist.ProcessGroup | None = None
    #: Whether it runs inside an existing process group (:mod:`weft.runtime.ranks.within`).
    is_guest: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.transport = self.transport or ("nccl" if self.device.type == "cuda" else "gloo")

    def now(self) -> float:
        """Seconds on the clock that all ranks share."""
        return time.perf_counter() + self.offset

    @property
    def processes(self) -> int:
        """The number of processes: all ranks of all copies."""
        return self.world * self.replicas * self.peers

    @property
    def copy(self) -> int:
        """The number of this copy of the plan among those of all replicas and peers."""
        return self.replica * self.peers + self.peer

    def process(self, rank: int) -> int:
        """The number of the process that is ``rank`` of this copy of the plan."""
        return self.copy * self.world + rank

    def place(self, rank: int) -> int:
        """The number in ``torch.distributed`` of the process that is ``rank`` of this copy of the plan."""
        return self._places[self.process(rank)]

    @property
    def first_place(self) -> int:
        """The number in ``torch.distributed`` of its first process."""
        return self._places[0]

    @property
    def alike(self) -> list[int]:
        """The numbers of the processes that are this rank, and this peer, in all replicas."""
        return [(replica * self.peers + self.peer) * self.world + self.rank for replica in range(self.replicas)]

    def activity(self, text: str, waits_for: Iterable[int] = ()) -> Activity:
        """The activity ``text`` as reported to the watchdog; this rank cannot go on without the ranks ``waits_for``."""
        copy = f" in replica {self.replica}" if self.replicas > 1 else ""
        return Activity(text + copy, tuple(self.process(rank) for rank in waits_for if rank != self.rank))

    def doing(self, text: str, waits_for: Iterable[int] = ()) -> None:
        """Report this rank's activity from now on, and which ranks it cannot go on without."""
        self.watch.at(self.activity(text, waits_for))

    def rest(self, text: str) -> None:
        """The session's work is done: as a guest it is idle, at ``text``, for any length of time."""
        if self.is_guest:
            self.watch.rest(text)

    def barrier(self, text: str) -> None:
        """Wait for all ranks of all replicas; ``text`` says where."""
        self.watch.doing(f"waiting for all ranks {text}", self._everyone)
        meet(self.members)

    def common_start(self, delay: float = 0.005) -> float:
        """A common start time of all ranks on the shared clock, ``delay`` seconds after the last rank called."""
        self.barrier("to begin")
        moment = torch.tensor([self.now() + delay], dtype=torch.float64)
        dist.broadcast(moment, self._places[0], self.members)
        self.watch.begin()
        return float(moment)

    def exchange(self, value: Value, text: str) -> list[Value]:
        """The values of all ranks of this copy of the plan, on all of them; ``text`` says what for."""
        return self.everywhere(value, text)[self.process(0):self.process(self.world)]

    def everywhere(self, value: Value, text: str) -> list[Value]:
        """The values of all ranks of all replicas, on all of them; ``text`` says what for."""
        self.watch.doing(text, self._everyone)
        values = [value] * len(self._everyone)
        dist.all_gather_object(values, value, self.members)
        return self._in_order(values)

    def gather(self, value: Value) -> list[Value] | None:
        """The values of all ranks of all replicas, on process 0; ``None`` elsewhere."""
        self.watch.doing("handing the results to rank 0", self._everyone)
        values = [value] * len(self._everyone) if self.process(self.rank) == 0 else None
        dist.gather_object(value, values, self._places[0], self.members)
        return None if values is None else self._in_order(values)

    def asked_to_stop(self) -> signal.Signals | None:
        """The signal that any rank received while the watch heeds signals, on all of them; ``None`` if none did."""
        came = self.everywhere(self.watch.asked, "asking whether to stop")
        return next((signal.Signals(number) for number in came if number is not None), None)

    def agree(self, what: str, value: object) -> None:
        """Raise :class:`SessionError` unless all ranks of all replicas have the same ``value``; ``what`` names it."""
        self.agree_on({what: value}, what)

    def agree_on(self, values: Mapping[str, object], what: str) -> None:
        """The same for several values by name; ``what`` names them together."""
        found = self.everywhere(dict(values), f"comparing {what} with the other ranks")
        for process, others in enumerate(found):
            for name, first in found[0].items():
                if (other := others.get(name)) != first:
                    raise SessionError(f"{name} must be the same on all ranks, but it is {first!r:.200} on rank 0 and "
                                       f"{other!r:.200} on rank {process}")

    def add_groups(self, groups: Iterable[Iterable[int]]) -> None:
        """Make each of ``groups`` a :meth:`group`; all ranks of the session must do this, in the same order."""
        for group in groups:
            ranks = tuple(sorted(group))
            if ranks not in self.groups:
                self.groups[ranks] = self.new_group(ranks)

    def add_meetings(self, meetings: Mapping[tuple[int, ...], tuple[int, ...]]) -> None:
        """Make a process group for each of these sets of ranks, by the sets of devices on them; all ranks of the
        session must call this, in the same order. Lanes that run at the same time must not share a group."""
        for devices, ranks in meetings.items():
            if devices not in self.meetings:
                self.meetings[devices] = self.new_group(ranks)

    def new_group(self, ranks: Sequence[int], backend: str | None = None) -> dist.ProcessGroup | None:
        """A group of ``ranks`` in each replica, by the session's backend or another; this replica's, if this rank is in
        it. All ranks of the session must call it, at the same point."""
        found = None
        for copy in range(self.replicas * self.peers):
            made = self._made([copy * self.world + rank for rank in ranks], backend)
            if copy == self.copy and isinstance(made, dist.ProcessGroup):
                found = made
        return found

    def group(self, ranks: Iterable[int]) -> dist.ProcessGroup:
        """The process group of ``ranks``, of which this is one, for collectives.

        Raises :class:`SessionError` if there is none: those of a plan's blocks on several devices are made by
        :meth:`add_groups`.
        """
        found = self.groups.get(tuple(sorted(ranks)))
        if found is None:
            raise SessionError(f"rank {self.rank} has no group with the ranks {sorted(ranks)}: there is one for each "
                               "set of devices that a block of the plan runs on together")
        return found

    def counterparts(self) -> dist.ProcessGroup:
        """The process group of this rank in all replicas. All ranks of the session must call it, at the same point."""
        if self._counterparts is None:
            for first in range(self.world * self.peers):
                made = self._made(range(first, self.processes, self.world * self.peers))
                if first == self.alike[0] and isinstance(made, dist.ProcessGroup):
                    self._counterparts = made
        assert self._counterparts is not None
        return self._counterparts

    def meet(self, ranks: tuple[int, ...]) -> None:
        """Wait for ``ranks``, of which this is one."""
        meet(self.group(ranks))

    def meet_on(self, devices: tuple[int, ...]) -> None:
        """Wait for all ranks that hold ``devices``, of which this is one (see :meth:`add_meetings`)."""
        meet(self.meetings[devices])

    def _in_order(self, values: list[Value]) -> list[Value]:
        """``values``, gathered by a group in the order of places, reordered by process number."""
        order = {place: i for i, place in enumerate(sorted(self._places))}
        return [values[order[place]] for place in self._places]

    def _made(self, numbers: Sequence[int], backend: str | None = None) -> dist.ProcessGroup | int:
        """A group of these of its processes; no group on any other process."""
        made: dist.ProcessGroup | int = dist.new_group([self._places[number] for number in numbers], backend=backend)
        return made

    @property
    def _everyone(self) -> Sequence[int]:
        """Its processes, by their numbers in the watch."""
        return range(self.processes)

    @property
    def _places(self) -> Sequence[int]:
        """Its processes, by their numbers in ``torch.distributed``."""
        return self.places or self._everyone


@contextlib.contextmanager
def join(timeout: float, device: torch.device | None = None, transport: str | None = None,
         reserve: int = RESERVE, replicas: int = 1) -> Iterator[Session]:
    """Join the ranks that ``torchrun``, or another launcher (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), started.

    CPU tensors use gloo, GPU tensors NCCL, whose communicators are made at their first use: made at once, they would
    share one stream. Where NCCL cannot join the ranks (:mod:`~weft.runtime.ranks.gpus`), collectives use gloo. Past
    ``timeout`` seconds in one instruction or wait the process ends, as on any error inside. ``transport`` and
    ``reserve``: see :class:`Session`; by default the device's. The ranks are those of ``replicas`` copies of a plan, of
    equal size. Raises :class:`SessionError` where rank 0 cannot be found.
    """
    device = device or torch.device("cpu")
    torch.set_num_threads(1)
    keep_freed_memory()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        store, watched, rank, world = find_others(timeout)
    except NotJoined as error:
        raise SessionError(str(error)) from None
    with Watch(PrefixStore("weft watch", watched), rank, world, timeout) as watch, told(watch):
        watch.doing("joining the other ranks", range(world))
        # The watch times out before the group does, so that there is a sentence.
        dist.init_process_group(backends_for(device), store=PrefixStore("weft", store), rank=rank, world_size=world,
                                timeout=datetime.timedelta(seconds=2 * timeout + 30))
        if world % replicas:
            raise SessionError(f"{world} ranks cannot be {replicas} replicas of equal size")
        size = world // replicas
        offset = clock_offset(rank, range(world))
        watch.joined()
        yield Session(rank % size, size, device, watch, offset, transport or "", reserve, rank // size, replicas)
        watch.doing("waiting for all ranks to finish", range(world))
        meet()
        watch.finish()
        dist.destroy_process_group()


@contextlib.contextmanager
def told(watch: Watch) -> Iterator[None]:
    """End this process, and tell the other ranks why, on any error inside."""
    try:
        yield
    except ConnectionError as error:
        if isinstance(error, BrokenPipeError) and output_is_closed():
            watch.give_up(f"whoever read its output has ended, while {watch.text}", CLOSED)
        watch.give_up(f"{error} while {watch.text}")
    except SessionError as error:
        watch.give_up(str(error), code=2)
    except RunError as error:
        watch.give_up(str(error))
    except KeyboardInterrupt:  # a thread that began before the watch has no mask, so the signal came here
        watch.give_up(f"stopped by SIGINT while {watch.text}", 128 + signal.SIGINT)
    except (Exception, SystemExit) as error:
        message = (str(error) or "no message").splitlines()[0]
        if _is_of_the_network(error) and (lost := watch.lost()) is not None:
            watch.give_up(f"{lost} while {watch.text}")
        traceback.print_exc()
        watch.give_up(f"{type(error).__name__} while {watch.text}: {message}")


def _is_of_the_network(error: BaseException) -> bool:
    """Whether a collective reports a lost peer: torch has its own exception types for some cases only."""
    said = str(error)
    return isinstance(error, RuntimeError) and (isinstance(error, dist.DistError) or any(
        sign in said for sign in ("gloo", "Connection closed by peer", "Connection reset by peer", "Broken pipe")))


def meet(group: dist.ProcessGroup | None = None) -> None:
    """A barrier in CPU memory, whatever the group's other backends."""
    dist.all_reduce(torch.zeros(1), group=group)


def clock_offset(rank: int, places: Sequence[int], group: dist.ProcessGroup | None = None) -> float:
    """The offset from this rank's clock to rank 0's, in seconds. The ranks are those of ``group``, numbered ``places``
    in ``torch.distributed``.

    One host has one clock. Otherwise the ranks, one after another, request rank 0's time; of several replies, the one
    with the shortest round trip counts, and rank 0's time is taken to be that of its middle (Cristian 1989).
    """
    hosts: list[object] = [None] * len(places)
    dist.all_gather_object(hosts, _BOOT.read_text() if _BOOT.exists() else str(datetime.datetime.now()), group)
    if len(set(hosts)) == 1:
        return 0.0
    best = (float("inf"), 0.0)
    answer = torch.zeros(1, dtype=torch.float64)
    for other in range(1, len(places)):
        for _ in range(PINGS):
            if rank == 0:
                dist.recv(answer, places[other], group)
                answer[0] = time.perf_counter()
                dist.send(answer, places[other], group)
            elif rank == other:
                asked = time.perf_counter()
                dist.send(answer, places[0], group)
                dist.recv(answer, places[0], group)
                back = time.perf_counter()
                best = min(best, (back - asked, float(answer) - (asked + back) / 2))
    return 0.0 if rank == 0 else best[1]
