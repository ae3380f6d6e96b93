"""What is known of turns, in one place for all who take them.

A board is a row of numbers and a lock, in a file that each process maps into its memory; each holds a lock of the
operating system on a file of its own, which comes free when it ends, however it ends: so the others learn of a process
that was killed, and no number is left to guess whose it was. A process that is stopped, and not ended, keeps its turn:
who waits for it says so.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

#: What the board says of a job on this rank: its process has not come, runs, or has ended.
ABSENT, HERE, GONE = 0, 1, 2
#: Seconds between two looks at a board: the first, the longest, and between two looks at whether
#: another process still runs.
_FIRST, _LONGEST, _ALIVE = 5e-5, 1e-3, 0.05
_HEAD = 32  # bytes before the numbers


class FileBoard:
    """A board for the processes of several ``jobs`` on one rank, in the file ``path``; ``digest`` says of which plan.
    Its numbers, ``cells``, may be looked at and changed under :meth:`locked` only.

    A job of which no process has come within ``patience`` seconds counts as gone. Where nothing changes for
    ``told_after`` seconds, who waits says on standard error for whom, and again after as long. Whoever cannot hold the
    board within ``within`` seconds, as a process is stopped that does, gets a ``TimeoutError``.

    Raises ``ValueError`` for a file that is of another plan.
    """

    def __init__(self, path: Path, count: int, digest: str, jobs: Sequence[str], patience: float, *,
                 told_after: float = 60.0, within: float = math.inf) -> None:
        self.path, self.jobs, self.patience, self.told_after, self.within = path, jobs, patience, told_after, within
        self._mark = digest.encode()[:_HEAD].ljust(_HEAD)
        self._thread = threading.RLock()  # the file's lock is the process's, not the thread's
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._alive: int | None = None
        self._own: int | None = None
        self._waiting_since: dict[int, float] = {}
        size = _HEAD + 8 * count
        with self._file_locked():
            if not any(os.pread(self._file, _HEAD, 0)):  # new, or of one that was killed before the next two lines
                os.ftruncate(self._file, size)
                os.pwrite(self._file, self._mark, 0)
            same = os.fstat(self._file).st_size == size and os.pread(self._file, _HEAD, 0) == self._mark
        if not same:
            os.close(self._file)
            raise ValueError(f"{path}: these turns are of another plan: give each run a folder of its own")
        self._memory = mmap.mmap(self._file, size)
        self.cells = memoryview(self._memory)[_HEAD:].cast("q")

    def hold(self, job: int) -> None:
        """This process is the one of ``job``, until it ends. Raises ``ValueError`` where another one is."""
        self._own, self._alive = job, os.open(self._alive_path(job), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.lockf(self._alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._alive)
            raise ValueError(f"{self.path}: the job {self.jobs[job]} runs there already: give each run a folder of its "
                             "own") from None

    def close(self) -> None:
        """Let go of it."""
        self.cells.release()
        self._memory.close()
        os.close(self._file)
        if self._alive is not None:
            os.close(self._alive)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the board."""
        with self._thread, self._file_locked():
            yield

    def wait(self, blockers: Callable[[], Collection[int]]) -> Collection[int]:
        """With the board held: let others change it, then hold it again. Gives those of ``blockers``, jobs by number,
        that have gone without a word."""
        pause, looked, told = _FIRST, time.monotonic(), time.monotonic()
        before = bytes(self.cells)
        while True:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self._thread.release()
            time.sleep(pause)
            self._thread.acquire()
            self._take()
            if bytes(self.cells) != before:
                return ()
            pause = min(2 * pause, _LONGEST)
            if time.monotonic() - looked > _ALIVE:
                looked = time.monotonic()
                if gone := [job for job in blockers() if self._is_gone(job)]:
                    return gone
            if time.monotonic() - told > self.told_after:
                told = time.monotonic()
                whose = " and ".join(self.jobs[job] for job in sorted(blockers()))
                self._say(f"has waited for {self.told_after:g} s for the turn of job {whose}: its process is at "
                          "something long, stopped, or not there yet")

    def _say(self, what: str) -> None:
        own = "" if self._own is None else f"job {self.jobs[self._own]} "
        sys.stderr.write(f"weft: {self.path.stem}: {own}{what}\n")

    def _is_gone(self, job: int) -> bool:
        state = self.cells[len(self.cells) - len(self.jobs) + job]
        if state == HERE:  # to open and close one's own file would let go of its lock
            return job != self._own and self._is_free(self._alive_path(job))
        if state == ABSENT:
            since = self._waiting_since.setdefault(job, time.monotonic())
            if time.monotonic() - since > self.patience:
                sys.stderr.write(f"weft: job {self.jobs[job]} has not come within {self.patience:g} s: the others go "
                                 "on without it\n")
                return True
        return False

    @staticmethod
    def _is_free(path: Path) -> bool:
        """Whether no process holds the lock of ``path``."""
        probe = os.open(path, os.O_RDWR)
        try:
            fcntl.lockf(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(probe)
        return True

    def _alive_path(self, job: int) -> Path:
        return self.path.with_suffix(f".{job}.alive")

    def _take(self) -> None:
        """Lock the file. Nobody keeps it for longer than a look, unless stopped just then: so looks are enough."""
        began, pause = time.monotonic(), _FIRST
        told = began
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                pass
            now = time.monotonic()
            if now - began > self.within:
                raise TimeoutError(f"{self.path}: a process that holds it does not let go of it")
            if now - told > self.told_after:
                told = now
                self._say(f"has waited for {self.told_after:g} s for a process to let go of {self.path}: one is "
                          "stopped")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST)

    @contextmanager
    def _file_locked(self) -> Iterator[None]:
        self._take()
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
