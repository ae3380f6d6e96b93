"""How ranks find each other: a shared store, within a set time, with a sentence that names missing ranks.

Rank 0 makes the store (or ``torchrun``'s agent has made it), every rank puts its name there, and none goes on before
all names are there. A connection to a listener that never answers does not end by itself, so a thread ends the process.

Ranks on one machine meet on its loopback interface: the store listens nowhere else where MASTER_ADDR is a loopback
address, and so does gloo, unless GLOO_SOCKET_IFNAME names another interface. Ranks on several machines first report
which of them the others could not reach.

A process may join several times in sequence: its connections stay, and each time has its own keys in the store, where
earlier keys remain.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from weft.runtime.ranks.loopback import is_loopback, listening, loopback_interface, own_name_is_loopback
from weft.runtime.ranks.words import some

LOOK = 0.05  # seconds between two polls for the other ranks
SLACK = 1.0  # seconds that a library may exceed its limit by
FAULT = 2  # exit code: a fault that the user can fix
INTERFACE = "GLOO_SOCKET_IFNAME"  # the variable that sets gloo's network interface


#: The connections of this process (a fork inherits none), by process, address and port, and how often they were joined.
_MET: dict[tuple[int, str, int], tuple[Store, Store, int]] = {}


class NotJoined(ValueError):
    """Ranks that did not find each other: one sentence."""


class JoinedStore(NamedTuple):
    """Two connections to the store that all ranks share (one for the watch only), this rank, and the number of
    ranks."""

    store: Store
    watched: Store
    rank: int
    world: int


def find_others(timeout: float) -> JoinedStore:
    """Meet the other ranks, as RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say, within ``timeout`` seconds.

    Raises :class:`NotJoined` where these are not set, rank 0 is not found, its port is taken, or a rank does not come.
    A process that waits for a silent listener ends with exit code 2 and a sentence.
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
            _require_reachable(store, world)
        except OSError as error:
            raise NotJoined(_cannot_listen(host, port, error.strerror or str(error))) from None
        except RuntimeError as error:
            why = f"{(str(error) or type(error).__name__).splitlines()[0]:.200}"
            if rank == 0 and isinstance(error, dist.DistNetworkError) and not _agent_has_it():
                raise NotJoined(_cannot_listen(host, port, why)) from None
            raise NotJoined(f"{missing} ({why}): start all ranks, with one MASTER_ADDR and MASTER_PORT") from None
    return JoinedStore(store, watched, rank, world)


def _cannot_listen(host: str, port: int, why: str) -> str:
    return (f"rank 0 cannot listen at {host}:{port} ({why}): give a MASTER_PORT that is free, and as MASTER_ADDR the "
            "address of rank 0's machine")


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not text.isdecimal():
        raise NotJoined(f"{name} is {text!r}, it must be a number; torchrun sets it for every rank")
    return int(text)


def _agent_has_it() -> bool:
    """Whether ``torchrun``'s own process hosts the store."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _connected(host: str, port: int, rank: int, world: int, timeout: float, until: float) -> tuple[Store, Store]:
    """Two connections to the store, with keys of this join only."""
    place = os.getpid(), host, port
    if place not in _MET:
        # Libraries listen on all interfaces, unless they are passed a listening socket.
        ours = rank == 0 and not _agent_has_it() and is_loopback(host)
        store = _store(host, port, rank, world, timeout, listening(host, port) if ours else None)
        watched = _store(host, port, rank, world, until - time.monotonic())
        _MET[place] = store, watched, 0
    store, watched, times = _MET[place]
    _MET[place] = store, watched, times + 1
    return PrefixStore(f"weft {times}", store), PrefixStore(f"weft {times}", watched)


def _store(host: str, port: int, rank: int, world: int, seconds: float, listens: int | None = None) -> Store:
    """A connection; on rank 0 to a store of its own, on the listening socket ``listens`` if there is one."""
    wait = datetime.timedelta(seconds=max(1e-3, seconds))
    if _agent_has_it():
        found: Store = next(iter(rendezvous("env://", timeout=wait)))[0]
        return found
    return TCPStore(host, port, world, is_master=rank == 0, timeout=wait, wait_for_workers=False, multi_tenant=True,
                    master_listen_fd=listens)


def _call_roll(store: Store, rank: int, world: int, timeout: float, until: float) -> None:
    """Wait until all ranks have come; name those that have not. Each publishes its network, and the address that gloo
    would announce for it where others cannot reach that."""
    roll = PrefixStore("weft roll", store)
    roll.set(str(rank), json.dumps([_network(), None if os.environ.get(INTERFACE) else own_name_is_loopback()]))
    missing = [str(other) for other in range(world)]
    while missing := [other for other in missing if not roll.check([other])]:
        if time.monotonic() > until:
            raise NotJoined(f"rank {rank} waited {timeout:g} s for rank{'s' * (len(missing) > 1)} {some(missing)} of "
                            f"{world} to join, in vain: start all ranks, with one MASTER_ADDR and MASTER_PORT")
        time.sleep(LOOK)


def _require_reachable(store: Store, world: int) -> None:
    """Where all ranks are on one machine, make gloo use its loopback interface; else refuse ranks whose gloo address
    only their own machine reaches."""
    roll = PrefixStore("weft roll", store)
    said = [json.loads(roll.get(str(rank))) for rank in range(world)]
    if len({network for network, _ in said}) == 1:
        if said[0][0] is not None and (interface := loopback_interface()) is not None:
            os.environ.setdefault(INTERFACE, interface)
        return
    for rank, (_, name) in enumerate(said):
        if name is not None:
            raise NotJoined(f"rank {rank}'s machine is known to itself as {name}, where ranks on other machines cannot "
                            f"reach it: set {INTERFACE} there to the network interface between the machines, such as "
                            "eth0 (`ip -brief address` lists them), or mend its line in /etc/hosts")


def _network() -> str | None:
    """An identifier of this process's network: containers of one machine may have one each. ``None`` where the system
    does not tell."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"
    return None


@contextmanager
def _ended_after(seconds: float, sentence: str) -> Iterator[None]:
    """End this process with ``sentence`` unless the block ends within ``seconds``."""
    over = threading.Event()

    def wait() -> None:
        if not over.wait(seconds):
            with contextlib.suppress(OSError, ValueError):  # the reader may have ended
                sys.stderr.write(f"weft: {sentence}\n")
                sys.stderr.flush()
            os._exit(FAULT)

    threading.Thread(target=wait, name="weft joining", daemon=True).start()
    try:
        yield
    finally:
        over.set()
