"""Processes that end with their parent, however that ends.

Three mechanisms, each for where another may fail:

* the block that starts them ends those that still run, on any error and on a signal that raises;
* a keeper, a small shell in its own session, reads from a pipe with no other reader. The pipe closes when the parent
  dies silently (``kill -9``, a signal without a handler, lack of memory); then the keeper ends the process groups that
  were still running, descendants included, and removes the folders that it was given;
* on Linux the system ends each process with the thread that started it (``PR_SET_PDEATHSIG``). A parent that ended
  before this was set is detected by its PID.

Each process leads its own process group: a terminal's Ctrl-C reaches the parent alone, which forwards it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

_PDEATHSIG = 1  # of prctl(2): the signal that a process gets when its parent ends
#: The keeper's script. It reads ``rank NUMBER``, ``over NUMBER``, ``folder PATH``; at ``done`` nothing is left to do.
_KEEPER = """
trap '' HUP INT TERM
ranks= folders=
while IFS=' ' read -r word rest; do
  case $word in
    rank) ranks="$ranks $rest";;
    over) left=; for rank in $ranks; do [ "$rank" = "$rest" ] || left="$left $rank"; done; ranks=$left;;
    folder) folders="$folders$rest
";;
    done) exit 0;;
  esac
done
for rank in $ranks; do kill -9 "-$rank" 2>/dev/null; done
printf %s "$folders" | while IFS= read -r folder; do rm -rf -- "$folder"; done
"""


class Start(NamedTuple):
    """A process to start: its command and whole environment, and its output streams (``None``: this process's). It
    reads no input."""

    command: Sequence[str]
    environment: Mapping[str, str]
    stdout: IO[bytes] | int | None = None
    stderr: IO[bytes] | int | None = None


@contextmanager
def children(starts: Sequence[Start], folders: Sequence[Path] = ()) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes for ``starts``, in their order; those that still run are ended (SIGKILL) at the end of the block, or
    when this process ends. ``folders`` are removed in the second case only: in the first their owner still runs.
    """
    running: list[_Child] = []
    with _keeper() as tell:
        for folder in folders:
            tell(f"folder {folder.absolute()}")
        try:
            for start in starts:
                running.append(_Child(
                    start.command, stdin=subprocess.DEVNULL, stdout=start.stdout, stderr=start.stderr,
                    env=start.environment, process_group=0, preexec_fn=_binding()))
                tell(f"rank {running[-1].pid}")
                running[-1].tell = tell
            yield [*running]
        finally:
            for process in running:
                end(process)
            for process in running:
                process.wait()
                process.tell = None


class _Child(subprocess.Popen[bytes]):
    """Notifies the keeper once it has been waited for: its PID may be reused from then on."""

    tell: Callable[[str], object] | None = None

    def poll(self) -> int | None:
        code = super().poll()
        if code is not None and self.tell is not None:
            self.tell(f"over {self.pid}")
            self.tell = None
        return code


def end(process: subprocess.Popen[bytes]) -> None:
    """End ``process`` and its process group (SIGKILL), if it still runs."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # its group may be gone already
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()


def end_with_parent(parent: int) -> None:
    """From now on this process ends (SIGKILL) when its parent, with PID ``parent``, does; does nothing on systems other
    than Linux."""
    bind = _binding(parent)
    if bind is not None:
        bind()


def _binding(parent: int | None = None) -> Callable[[], None] | None:
    """The function by which a new process binds its life to its parent's, between fork and exec; all it needs is
    loaded."""
    if sys.platform != "linux":
        return None
    prctl, starter = ctypes.CDLL(None).prctl, os.getpid() if parent is None else parent

    def bind() -> None:
        prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != starter:  # it ended before the line above
            os._exit(128 + signal.SIGKILL)

    return bind


@contextmanager
def _keeper() -> Iterator[Callable[[str], object]]:
    """A function that sends a line to a new keeper. The keeper gets ``done`` at the end of the block."""
    reading, writing = os.pipe()
    try:
        with contextlib.ExitStack() as closing:
            closing.callback(os.close, reading)
            keeper = _shell(reading)
    except BaseException:
        os.close(writing)
        raise

    def tell(line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # the keeper was killed: the other two mechanisms remain
            os.write(writing, f"{line}\n".encode())

    try:
        yield tell
    finally:
        tell("done")
        os.close(writing)
        if keeper is not None:
            keeper.wait()


def _shell(reading: int) -> subprocess.Popen[Any] | None:
    try:
        return subprocess.Popen(["/bin/sh", "-c", _KEEPER], stdin=reading, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL, cwd="/", start_new_session=True)
    except OSError:  # a system without /bin/sh
        return None
