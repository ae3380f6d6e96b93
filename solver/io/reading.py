"""Reading files of a limited size, whole, into memory: no pipe that never ends, no folder, nothing larger than it may
be."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

_KINDS = ((stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"),
          (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))


def checked_path(path: str | os.PathLike[str], most: int, what: str, refuse: Callable[[str], Exception]) -> str:
    """``path`` as text. Unless it is a file of at most ``most`` bytes, raises the exception that ``refuse`` makes from
    one sentence.

    ``what``: the expected kind of file ("a spec").
    """
    where = os.fspath(path)
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise refuse(f"{where!r:.300}: cannot be read: {error}" if isinstance(error, ValueError) else
                     f"{where}: cannot be read: {error.strerror or error}") from None
    if not stat.S_ISREG(status.st_mode):
        kind = next((words for test, words in _KINDS if test(status.st_mode)), "no file")
        raise refuse(f"{where}: is {kind}, {what} must be a file")
    if status.st_size > most:
        raise refuse(f"{where}: is larger than {most // 1024**2} MiB, which {what} is not")
    return where


def read_bytes(path: str | os.PathLike[str], most: int, what: str, refuse: Callable[[str], Exception]) -> bytes:
    """The bytes in ``path``; arguments and errors as those of :func:`checked_path`."""
    where = checked_path(path, most, what, refuse)
    try:
        with open(path, "rb") as stream:
            data = stream.read(most + 1)
    except OSError as error:
        raise refuse(f"{where}: cannot be read: {error.strerror or error}") from None
    if len(data) > most:  # it grew, or has no size (/proc)
        raise refuse(f"{where}: is larger than {most // 1024**2} MiB, which {what} is not")
    return data


def read_text(path: str | os.PathLike[str], most: int, what: str, refuse: Callable[[str], Exception]) -> str:
    """The UTF-8 text in ``path``; arguments and errors as those of :func:`checked_path`."""
    try:
        return read_bytes(path, most, what, refuse).decode("utf-8")
    except UnicodeDecodeError:
        raise refuse(f"{os.fspath(path)}: is not UTF-8 text") from None
