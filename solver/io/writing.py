"""Writing files: whole or not at all, to the target of a link, and directly if the target is not a regular file."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
import time
from pathlib import Path

from weft.solver.control.stopping import STOP

#: Files being written, to be removed if the process ends at once.
_partial: set[str] = set()
#: Seconds between polls for a reader of a pipe.
_LOOK = 0.05


def default_folder() -> Path:
    """The folder for reusable results: ``weft`` in the user's cache folder (``XDG_CACHE_HOME``, else ``~/.cache``)."""
    stated = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(stated) if os.path.isabs(stated) else Path.home() / ".cache") / "weft"


def cache_folder(choice: str | os.PathLike[str] | bool | None) -> Path | None:
    """The caller's cache folder: one by name, ``True`` for the default one, ``None`` or ``False`` for none.

    Raises ``ValueError`` for anything else."""
    if choice is None or choice is False:
        return None
    if choice is not True and not isinstance(choice, str | os.PathLike):
        raise ValueError(f"cache is {choice!r:.60}, it must be the name of a folder, True or None")
    return default_folder() if choice is True else Path(choice)


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write ``content`` to ``path`` whole or not at all.

    A symbolic link is kept and its target is written; an existing file keeps its permissions. A device, a pipe or a
    socket is written directly. Raises ``OSError`` with the file's name (folder missing or unwritable, file read-only,
    disk full); the old file, if any, is then untouched and no temporary file remains.
    """
    name = os.fspath(path)
    try:
        data = content.encode("utf-8") if isinstance(content, str) else content
    except UnicodeEncodeError:
        raise ValueError(f"{name}: cannot be written, some name in it is no text (half a surrogate pair)") from None
    try:
        try:
            mode = os.stat(path).st_mode
        except FileNotFoundError:
            mode = None
        if is_replaced(path):
            _replace(Path(os.path.realpath(path)), data, mode)
        else:
            assert mode is not None
            _write_straight(path, data, mode)
    except OSError as error:  # names the requested file, not the temporary one
        raise OSError(error.errno, error.strerror or str(error), name) from None
    except ValueError:  # a NUL in the name
        raise OSError(errno.EINVAL, "cannot be a file's name", name) from None


def is_replaced(path: str | os.PathLike[str]) -> bool:
    """Whether a write to ``path`` replaces or creates a file: not for a device, a pipe, a folder or a file that this
    process already has open (``/dev/stdout``)."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return True
    folder = os.path.realpath(os.path.dirname(os.path.abspath(path)))
    opened = folder.startswith("/proc/") or (os.path.islink(path) and os.readlink(path).startswith("/proc/"))
    return stat.S_ISREG(mode) and not opened


def discard_partial() -> None:
    """Remove partially written files, for a process that ends without unwinding."""
    for name in list(_partial):
        with contextlib.suppress(OSError):
            os.unlink(name)


def _replace(target: Path, data: bytes, mode: int | None) -> None:
    if mode is not None and not os.access(target, os.W_OK):
        raise OSError(errno.EACCES, "is read-only")
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".weft-", suffix=".part")
    _partial.add(temporary)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        if mode is None:
            umask = os.umask(0)
            os.umask(umask)
            mode = 0o666 & ~umask
        os.chmod(temporary, stat.S_IMODE(mode))
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        _partial.discard(temporary)


def _write_straight(target: str | os.PathLike[str], data: bytes, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, "is a folder, name a file in it")
    handle = _open_pipe(target) if stat.S_ISFIFO(mode) else os.open(target, os.O_WRONLY | os.O_NOCTTY | os.O_APPEND)
    with os.fdopen(handle, "wb", buffering=0) as stream:
        rest = memoryview(data)
        while rest:
            rest = rest[stream.write(rest) or 0:]


def _open_pipe(target: str | os.PathLike[str]) -> int:
    """Open a named pipe once it has a reader: opening it in one call would wait even if the user wants to stop."""
    while True:
        try:
            handle = os.open(target, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if STOP.requested:
                raise OSError(errno.EINTR, "is a pipe that nobody reads") from None
            time.sleep(_LOOK)
        else:
            os.set_blocking(handle, True)
            return handle
