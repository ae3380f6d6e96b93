"""Which rank is gone, where a library says only that a connection broke.

Ranks tell each other, when they meet, on which machine they run and by which number. Those of one machine then see
which processes have ended; of other machines nothing can be seen, and their ranks are named as what may have.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from weft.runtime.transports.one_host.peers import Processes

__all__ = ["LOST", "Gone", "Whereabouts", "whereabouts"]

#: What stands in the messages of gloo and NCCL where the other side is gone.
LOST = ("closed by peer", "reset by peer", "Broken pipe", "Connection refused", "remote process has terminated")
_PATIENCE, _LOOK = 1.0, 0.05  # seconds that a process may take to end behind its connections


class Whereabouts(NamedTuple):
    """The machine of a process, as its processes see it: its boot and its container's processes; its number there."""

    machine: str
    number: int


def whereabouts() -> Whereabouts:
    """Those of this process."""
    try:
        machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        machine = socket.gethostname()
    return Whereabouts(machine, os.getpid())


class Gone:
    """The processes of the ranks of a group, ``every`` one's as :func:`whereabouts` has them, seen from number
    ``rank``."""

    def __init__(self, rank: int, every: Sequence[Whereabouts]) -> None:
        here = every[rank].machine
        self._near = {other: each.number for other, each in enumerate(every) if each.machine == here and other != rank}
        self._far = [other for other, each in enumerate(every) if each.machine != here]
        self._processes = Processes(self._near)

    def sentence(self, among: Collection[int] | None = None) -> str:
        """Whose process has ended, of the ranks ``among`` whom it was waited, by default of all: others may have ended
        well."""
        near, far = ([other for other in ranks if among is None or other in among]
                     for ranks in (self._near, self._far))
        until = time.monotonic() + _PATIENCE
        while not (gone := [other for other in near if not self._processes.alive(other)]):
            if far or time.monotonic() > until:
                break
            time.sleep(_LOOK)
        if gone:
            return f"{_named(gone)} has ended"
        return ("another rank has closed its connections" if not far else
                f"{_named(far)} on another machine has ended, or cannot be reached")


def _named(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}'s process"
    return f"a process of the ranks {', '.join(map(str, ranks))}"
