"""How the ranks find each other: a store that all share, within a set time, and with a sentence about who is missing.

Rank 0 makes the store (or ``torchrun``'s agent has made it), every rank puts its name there, and none goes on before
all names are there. A connection to what listens at the port but never answers does not end by itself, so a thread
beside it ends the process.

A process may join more than once, one time after the other: its connections stay, and each time has keys of its own in
the store, where those of the time before still stand.
"""

from __future__ import annotations

import datetime
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

__all__ = ["Found", "NotJoined", "find_others"]

LOOK = 0.05  # seconds between two looks at who is there
SLACK = 1.0  # seconds that a library has beyond the limit it was given
FAULT = 2  # exit code: what the user can mend


#: The connections of this process (a fork has none of its parent's), by process, address and port, and how often they
#: have been joined by.
_MET: dict[tuple[int, str, int], tuple[Store, Store, int]] = {}


class NotJoined(ValueError):
    """Ranks that did not find each other: one sentence."""


class Found(NamedTuple):
    """Two connections to the store that all ranks share (one for the watch only), this rank, and how many there are.
    """

    store: Store
    watched: Store
    rank: int
    world: int


def find_others(timeout: float) -> Found:
    """Meet the other ranks, as RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say, within ``timeout`` seconds.

    Raises :class:`NotJoined` where they say nothing, rank 0 is not found, its port is taken, or a rank does not come.
    A process that waits for what never answers ends with exit code 2 and a sentence.
    """
    rank, world = _number("RANK"), _number("WORLD_SIZE")
    if not 0 <= rank < world:
        raise NotJoined(f"RANK is {rank} and WORLD_SIZE {world}: ranks are numbered from 0 to WORLD_SIZE - 1")
    host, port = os.environ.get("MASTER_ADDR", ""), _number("MASTER_PORT")
    if not host or not 0 < port < 2**16:
        raise NotJoined(f"MASTER_ADDR is {host!r} and MASTER_PORT {port}: they must name where rank 0 listens")
    until = time.monotonic() + timeout
    missing = f"rank {rank} did not find rank 0 at {host}:{port} within {timeout:g} s"
    with _ended_after(timeout + SLACK, f"{missing}: what listens there does not answer as rank 0 would; is it another "
                      "program? start all ranks with one MASTER_ADDR and a MASTER_PORT that is free"):
        try:
            store, watched = _connected(host, port, rank, world, timeout, until)
            _call_roll(store, rank, world, timeout, until)
        except RuntimeError as error:
            why = f"{(str(error) or type(error).__name__).splitlines()[0]:.200}"
            if rank == 0 and isinstance(error, dist.DistNetworkError) and not _agent_has_it():
                raise NotJoined(f"rank 0 cannot listen at {host}:{port} ({why}): give a MASTER_PORT that is free, and "
                                "as MASTER_ADDR the address of rank 0's machine") from None
            raise NotJoined(f"{missing} ({why}): start all ranks, with one MASTER_ADDR and MASTER_PORT") from None
    return Found(store, watched, rank, world)


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not text.isdecimal():
        raise NotJoined(f"{name} is {text!r}, it must be a number; torchrun sets it for every rank")
    return int(text)


def _agent_has_it() -> bool:
    """Whether the store is in ``torchrun``'s own process."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _connected(host: str, port: int, rank: int, world: int, timeout: float, until: float) -> tuple[Store, Store]:
    """Two connections to the store, as seen by this time of joining."""
    place = os.getpid(), host, port
    if place not in _MET:
        store, watched = (_store(host, port, rank, world, datetime.timedelta(seconds=max(1e-3, left)))
                          for left in (timeout, until - time.monotonic()))
        _MET[place] = store, watched, 0
    store, watched, times = _MET[place]
    _MET[place] = store, watched, times + 1
    return PrefixStore(f"weft {times}", store), PrefixStore(f"weft {times}", watched)


def _store(host: str, port: int, rank: int, world: int, wait: datetime.timedelta) -> Store:
    if _agent_has_it():
        found: Store = next(iter(rendezvous("env://", timeout=wait)))[0]
        return found
    return TCPStore(host, port, world, is_master=rank == 0, timeout=wait, wait_for_workers=False, multi_tenant=True)


def _call_roll(store: Store, rank: int, world: int, timeout: float, until: float) -> None:
    """Wait until all ranks have come; say which have not."""
    roll = PrefixStore("weft roll", store)
    roll.set(str(rank), "here")
    missing = [str(other) for other in range(world)]
    while missing := [other for other in missing if not roll.check([other])]:
        if time.monotonic() > until:
            shown = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
            raise NotJoined(f"rank {rank} waited {timeout:g} s for rank{'s' * (len(missing) > 1)} {shown} of {world} "
                            "to join, in vain: start all ranks, with one MASTER_ADDR and MASTER_PORT")
        time.sleep(LOOK)


@contextmanager
def _ended_after(seconds: float, sentence: str) -> Iterator[None]:
    """End this process with ``sentence`` unless what is inside has come to an end within ``seconds``."""
    over = threading.Event()

    def wait() -> None:
        if not over.wait(seconds):
            sys.stderr.write(f"weft: {sentence}\n")
            sys.stderr.flush()
            os._exit(FAULT)

    threading.Thread(target=wait, name="weft joining", daemon=True).start()
    try:
        yield
    finally:
        over.set()
