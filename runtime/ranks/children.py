"""Processes that end with the one that starts them, however that ends.

Three things see to it, each where another may fail:

* the block that starts them ends those that still run, on any error and on a signal that raises;
* a keeper, a small shell in a session of its own, reads from a pipe that nobody else holds. The pipe closes when the
  starting process ends without a word (``kill -9``, a signal without a handler, lack of memory); then the keeper ends
  the groups of all processes that were still running, with what they started themselves, and removes the folders that
  it was given;
* on Linux the system ends each process with the thread that started it (``PR_SET_PDEATHSIG``). A parent that ended
  before this was set is noticed by its number.

Each process leads a group of its own: a terminal's Ctrl-C reaches the starting process alone, which hands it on.
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

_PDEATHSIG = 1  # of prctl(2): the signal that a process gets when the one that started it ends
#: What the keeper does. It reads ``rank NUMBER``, ``over NUMBER``, ``folder PATH``; at ``done`` nothing is left to do.
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
    """A process to start: its command and whole environment, and where its output goes (``None``: where this process's
    goes). It reads nothing."""

    command: Sequence[str]
    environment: Mapping[str, str]
    stdout: IO[bytes] | int | None = None
    stderr: IO[bytes] | int | None = None


@contextmanager
def children(starts: Sequence[Start], folders: Sequence[Path] = ()) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes for ``starts``, in their order; those that still run are ended (SIGKILL) at the end of the block, or
    when this process ends. ``folders`` are removed in the second case only: in the first whoever made them is there.
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
    """Tells the keeper once it has been waited for: its number may be another process's from then on."""

    tell: Callable[[str], object] | None = None

    def poll(self) -> int | None:
        code = super().poll()
        if code is not None and self.tell is not None:
            self.tell(f"over {self.pid}")
            self.tell = None
        return code


def end(process: subprocess.Popen[bytes]) -> None:
    """End ``process`` and what it has started in its group (SIGKILL), if it still runs."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # its group may be gone already
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()


def end_with_parent(parent: int) -> None:
    """From now on this process ends (SIGKILL) when the one that started it does, which has the number ``parent``;
    where the system is not Linux, nothing happens."""
    bind = _binding(parent)
    if bind is not None:
        bind()


def _binding(parent: int | None = None) -> Callable[[], None] | None:
    """What a new process does to end with its parent, between fork and exec; all it needs is loaded before."""
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
    """What tells a keeper a line. At the end of the block it is told that all is done."""
    reading, writing = os.pipe()
    try:
        with contextlib.ExitStack() as closing:
            closing.callback(os.close, reading)
            keeper = _shell(reading)
    except BaseException:
        os.close(writing)
        raise

    def tell(line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # somebody has ended it: the other two ways are left
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
