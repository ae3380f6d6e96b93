"""Ranks inside an existing process group: all of its processes, or some, beside other sessions.

They meet in that group's store, under a name made of their numbers, and within a set time. The groups that a session
makes are known to its own processes only: other processes have nothing to do. torch names such a group after the number
of groups in its process, which differs between processes that have others; here all members know the name.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from weft.runtime.ranks.allocator import keep_freed_memory
from weft.runtime.ranks.gpus import backends_for
from weft.runtime.ranks.session import RESERVE, Session, SessionError, clock_offset, meet, told
from weft.runtime.ranks.watch import Watch
from weft.runtime.ranks.words import some

LOOK = 0.02  # seconds between two polls for the other ranks
#: How often processes have formed a session, by their numbers: in sequence or concurrently.
_TIMES: Counter[tuple[int, ...]] = Counter()


@dataclass
class _Within(Session):
    """A session with its own process groups: named ``name`` with a number, with the backends ``backend``."""

    name: str = ""
    backend: str = "gloo"
    limit: float = 60.0
    made: list[dist.ProcessGroup] = field(default_factory=list)
    numbers: Counter[tuple[int, ...]] = field(default_factory=Counter)
    is_guest: ClassVar[bool] = True

    def _made(self, numbers: Sequence[int], backend: str | None = None) -> dist.ProcessGroup | int:
        places = tuple(self.places[number] for number in numbers)
        if self.places[self.process(self.rank)] not in places:
            return -1
        self.numbers[places] += 1
        with called(f"{self.name} {'-'.join(map(str, places))} {self.numbers[places]}"):
            found: dist.ProcessGroup = dist.new_group(
                list(places), backend=backend or self.backend, use_local_synchronization=True,
                timeout=datetime.timedelta(seconds=2 * self.limit + 30))
        self.made.append(found)
        return found


@contextlib.contextmanager
def join_within(places: Sequence[int], timeout: float, device: torch.device, transport: str | None = None,
                replicas: int = 1, reserve: int = RESERVE, peers: int = 1) -> Iterator[Session]:
    """The session of the processes ``places`` of the existing group, this one among them: ``replicas`` copies of a
    plan, one after another, each of ``peers`` copies. See :func:`~weft.runtime.ranks.session.join`.

    Raises :class:`~weft.runtime.ranks.session.SessionError` where some do not come within ``timeout`` seconds.
    """
    torch.set_num_threads(1)
    keep_freed_memory()
    own, rank = tuple(places), tuple(places).index(dist.get_rank())
    _TIMES[own] += 1
    name = f"weft {'-'.join(map(str, own))} {_TIMES[own]}"
    base = c10d._get_default_store()
    store, watched = PrefixStore(name, _another(base)), PrefixStore(f"{name} watch", _another(base))
    _call_roll(store, own, rank, timeout)
    with Watch(watched, rank, len(own), timeout) as watch, told(watch):
        watch.doing("joining the other ranks", range(len(own)))
        world = len(own) // replicas // peers
        replica, peer = divmod(rank // world, peers)
        session = _Within(rank % world, world, device, watch, 0.0, transport or "", reserve, replica,
                          replicas, peer, peers, places=own, name=name, limit=timeout,
                          backend=backends_for(device))
        made = session._made(range(len(own)))
        assert isinstance(made, dist.ProcessGroup)
        session.members = made
        session.offset = clock_offset(rank, own, made)
        watch.joined()
        yield session
        if dist.is_initialized():  # else the owner of the group has ended it
            watch.doing("waiting for all ranks to finish", range(len(own)))
            meet(session.members)
        watch.finish()
        for group in reversed(session.made) if dist.is_initialized() else ():
            dist.destroy_process_group(group)


def _call_roll(store: Store, places: Sequence[int], rank: int, timeout: float) -> None:
    """Wait until all are there; name those that are not."""
    until = time.monotonic() + timeout
    store.set(f"here {rank}", "")
    missing = list(range(len(places)))
    while missing := [other for other in missing if not store.check([f"here {other}"])]:
        if time.monotonic() > until:
            shown = some([places[other] for other in missing])
            raise SessionError(f"rank {places[rank]} waited {timeout:g} s for rank{'s' * (len(missing) > 1)} {shown} "
                               f"to make the pipeline of the ranks {', '.join(map(str, places))} too, in vain: all "
                               "ranks of its mesh or group call weft.pipeline, pipelines in one order")
        time.sleep(LOOK)


def _another(store: Store) -> Store:
    """A separate connection to ``store``: a thread that waits on one blocks no other."""
    if hasattr(store, "clone"):
        found: Store = store.clone()
        return found
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if not isinstance(store, TCPStore):
        raise SessionError(f"the process group has a {type(store).__name__}, which torch {torch.__version__} cannot "
                           "connect to twice: make the group with init_method='env://'")
    return TCPStore(store.host, store.port, is_master=False)


@contextlib.contextmanager
def called(name: str) -> Iterator[None]:
    """The process group made inside the block is named ``name``."""
    before = c10d._process_group_name
    c10d._process_group_name = lambda ranks, use_hashed_name: name  # type: ignore[assignment,return-value]
    try:
        yield
    finally:
        c10d._process_group_name = before
