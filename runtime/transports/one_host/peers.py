"""Detection of peers whose processes have ended.

A handle (``pidfd``) distinguishes a process from a later one with the same PID. Without it (Linux before 5.3, some
sandboxes), the process's start time in ``/proc`` does.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Mapping
from pathlib import Path

from weft.runtime.ranks.leftovers import beginning


def machine() -> str | None:
    """An identifier shared by processes that see each other, by boot and container; ``None`` where the system does not
    tell.
    """
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


class Processes:
    """The processes of the peers, by the peers' ranks."""

    def __init__(self, numbers: Mapping[int, int]) -> None:
        self._handles: list[int] = []
        self._runs = {peer: self._look(number) for peer, number in numbers.items()}

    def alive(self, peer: int) -> bool:
        """Whether the process of ``peer`` still runs."""
        return self._runs[peer]()

    def close(self) -> None:
        """Close the handles."""
        for handle in self._handles:
            os.close(handle)
        self._handles.clear()

    def _look(self, number: int) -> Callable[[], bool]:
        """A function that returns whether the process of this number still runs."""
        try:
            handle = os.pidfd_open(number)
        except (AttributeError, OSError):  # also of a process that has ended by now
            begun = beginning(number)
            return lambda: begun is not None and beginning(number) == begun
        self._handles.append(handle)
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        return lambda: not poll.poll(0)
