"""Folders in shared memory that live as long as the process that makes them.

A folder's name identifies its owner: the PID namespace (a container has its own), the process, and when that began,
since PIDs are reused. If a process ends without removing its folder (``kill -9``, and its keeper with it), the next
process that makes such a folder removes it. Folders of running processes, of other containers and of other users stay.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


@contextmanager
def shared_folder(kind: str, where: Path = SHARED_MEMORY) -> Iterator[Path]:
    """A new folder for files that several processes map, removed at the end of the block: in ``where`` if that is
    writable, else among temporary files. ``kind`` is the prefix of its name. Leftover folders of dead processes of this
    kind are removed first."""
    place = where if os.access(where, os.W_OK) else Path(tempfile.gettempdir())
    _remove_of_the_dead(place, kind)
    with tempfile.TemporaryDirectory(prefix=f"{kind}-{_owner()}-", dir=place, ignore_cleanup_errors=True) as made:
        yield Path(made)


def beginning(number: int) -> str | None:
    """When process ``number`` began, in the system's ticks; ``None`` if it has ended."""
    try:
        said = Path(f"/proc/{number}/stat").read_bytes().rpartition(b")")[2].split()  # the name may hold anything
    except OSError:
        return None
    return None if said[0] in (b"Z", b"X") else said[19].decode()


def _owner() -> str:
    """This process, as part of a folder's name; ``unknown`` where the system does not tell."""
    space, begun = _space(), beginning(os.getpid())
    return "unknown" if space is None or begun is None else f"{space}-{os.getpid()}-{begun}"


def _space() -> int | None:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None


def _remove_of_the_dead(place: Path, kind: str) -> None:
    for folder in place.glob(f"{kind}-*"):
        space, number, begun, *rest = [*folder.name.removeprefix(f"{kind}-").split("-"), "", "", ""]
        if not (rest and number.isdecimal() and space == str(_space())):
            continue
        with suppress(OSError):
            if folder.stat().st_uid == os.getuid() and beginning(int(number)) != begun:
                shutil.rmtree(folder, ignore_errors=True)
