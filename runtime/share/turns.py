"""Turns on each device and lane of a rank: jobs take turns in the order of the plan, lap after lap.

All ranks have the same order of their common operations, and a rank skips only those of a job that has ended there. So
there is no deadlock, however jobs end.

The state of turns is on a board that all processes share: an array of numbers and a lock, in a memory-mapped file. Each
process also holds an operating system lock on a file of its own, which is released at its end for any reason: so other
processes detect that it was killed. A suspended process keeps its turn; processes that wait for it report that.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from weft.runtime.share.stages_plan import Key

#: A job's state on this rank: its process has not registered, runs, or has ended.
ABSENT, HERE, GONE = 0, 1, 2
#: Seconds between two polls of a board (first, longest), and between two checks whether another process still runs.
_FIRST, _LONGEST, _ALIVE = 5e-5, 1e-3, 0.05
_HEAD = 32  # bytes before the numbers


class FileBoard:
    """A board for the processes of several ``jobs`` on one rank, in the file ``path``; ``digest`` identifies the plan.
    Its numbers, ``cells``, may be read and changed under :meth:`locked` only.

    A job without a process within ``patience`` seconds counts as gone. A waiting process reports on standard error whom
    it waits for, every ``report_after`` seconds without a change. A process that cannot lock the board within
    ``within`` seconds, because the lock's owner is suspended, gets a ``TimeoutError``.

    Raises ``ValueError`` for a file of another plan.
    """

    def __init__(self, path: Path, count: int, digest: str, jobs: Sequence[str], patience: float, *,
                 report_after: float = 60.0, within: float = math.inf) -> None:
        self.path, self.jobs, self.patience, self.report_after, self.within = path, jobs, patience, report_after, within
        self._mark = digest.encode()[:_HEAD].ljust(_HEAD)
        self._thread = threading.RLock()  # the file's lock is per process, not per thread
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._alive: int | None = None
        self._own: int | None = None
        self._waiting_since: dict[int, float] = {}
        size = _HEAD + 8 * count
        with self._file_locked():
            if not any(os.pread(self._file, _HEAD, 0)):  # new, or left by a process killed before the next two lines
                os.ftruncate(self._file, size)
                os.pwrite(self._file, self._mark, 0)
            same = os.fstat(self._file).st_size == size and os.pread(self._file, _HEAD, 0) == self._mark
        if not same:
            os.close(self._file)
            raise ValueError(f"{path}: these turns are of another plan: give each run a folder of its own")
        self._memory = mmap.mmap(self._file, size)
        self.cells = memoryview(self._memory)[_HEAD:].cast("q")

    def hold(self, job: int) -> None:
        """Register this process as that of ``job``, until it ends. Raises ``ValueError`` if another one is registered.
        """
        self._own, self._alive = job, os.open(self._alive_path(job), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.lockf(self._alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._alive)
            raise ValueError(f"{self.path}: the job {self.jobs[job]} runs there already: give each run a folder of its "
                             "own") from None

    def close(self) -> None:
        """Release the board."""
        self.cells.release()
        self._memory.close()
        os.close(self._file)
        if self._alive is not None:
            os.close(self._alive)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the board."""
        with self._thread, self._file_locked():
            yield

    def wait(self, blockers: Callable[[], Collection[int]]) -> Collection[int]:
        """Unlock the locked board until another process changes it, then lock it again. Returns the jobs among
        ``blockers``, by number, whose processes have ended without leaving."""
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
            if time.monotonic() - told > self.report_after:
                told = time.monotonic()
                whose = " and ".join(self.jobs[job] for job in sorted(blockers()))
                self._say(f"has waited for {self.report_after:g} s for the turn of job {whose}: its process is at "
                          "something long, stopped, or not there yet")

    def _say(self, what: str) -> None:
        own = "" if self._own is None else f"job {self.jobs[self._own]} "
        sys.stderr.write(f"weft: {self.path.stem}: {own}{what}\n")

    def _is_gone(self, job: int) -> bool:
        state = self.cells[len(self.cells) - len(self.jobs) + job]
        if state == HERE:  # opening and closing the process's own file would release its lock
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
        """Lock the file, by polling: a process holds the lock briefly, unless it is suspended then."""
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
            if now - told > self.report_after:
                told = now
                self._say(f"has waited for {self.report_after:g} s for a process to let go of {self.path}: one is "
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


class JobOver(Exception):
    """The job has no more turns: it has ended, or failed on a rank."""


def cells_of(orders: Mapping[int, Sequence[Key]], jobs: Sequence[str]) -> int:
    """The number of cells of a board for the turns of ``jobs`` in ``orders``."""
    return (2 + len(jobs)) * len(orders) + len(jobs)


class Turns:
    """The turns of one rank. ``orders``: per device, the blocks of one lap; ``counts``: the number of micro-batches of
    each job in a lap.

    The board has, per device, its position and the job with the turn (0: none); per job and device whether it is over
    there; per job the state of its process.
    """

    def __init__(self, orders: Mapping[int, Sequence[Key]], counts: Mapping[str, int], board: FileBoard) -> None:
        self.orders, self.counts = {device: tuple(order) for device, order in orders.items()}, dict(counts)
        self._jobs = {job: number for number, job in enumerate(self.counts)}
        self._names = tuple(self.counts)
        self._place = {device: number for number, device in enumerate(self.orders)}
        self._size = len(self.orders)
        self.board = board
        # A job without blocks on a device counts as over there, so that the search for the next job skips it.
        self._present = {device: tuple(dict.fromkeys(job for job, _, _ in order))
                         for device, order in self.orders.items()}

    def take(self, key: Key, devices: Iterable[int]) -> None:
        """Wait until ``key`` is next on all ``devices``. Raises :class:`JobOver` if its job is over on one of them."""
        wanted = tuple(devices)
        with self.board.locked():
            while True:
                if any(self._is_over(key[0], device) for device in wanted):
                    raise JobOver(key[0])
                if all(not self._holder(device) and self._head(device) == key for device in wanted):
                    for device in wanted:
                        self.board.cells[self._size + self._place[device]] = self._jobs[key[0]] + 1
                    return
                for job in self.board.wait(lambda: self._blockers(wanted)):
                    self._leave(self._names[job])

    def give(self, devices: Iterable[int]) -> None:
        """End the turn on ``devices``, after its work is complete or has failed."""
        with self.board.locked():
            for device in devices:
                place = self._place[device]
                self.board.cells[place] += 1
                self.board.cells[self._size + place] = 0

    def end(self, job: str, devices: Iterable[int]) -> None:
        """Mark ``job`` as over on ``devices``. A current turn continues until :meth:`give`; no other job may begin
        there before."""
        with self.board.locked():
            for device in devices:
                self._set_over(job, device)

    def come(self, job: str) -> bool:
        """Register the process of ``job``; False if there was one before."""
        with self.board.locked():
            first = self._state(job) == 0
            self.board.cells[self._state_place(job)] = HERE
            return first

    def leave(self, job: str) -> None:
        """Mark the process of ``job`` as ended: it is over everywhere, and its current turns end."""
        with self.board.locked():
            self._leave(job)

    def _leave(self, job: str) -> None:
        self.board.cells[self._state_place(job)] = GONE
        for device, place in self._place.items():
            self._set_over(job, device)
            if self._holder(device) == self._jobs[job] + 1:
                self.board.cells[self._size + place] = 0

    def _state_place(self, job: str) -> int:
        return (2 + len(self._names)) * self._size + self._jobs[job]

    def _state(self, job: str) -> int:
        return int(self.board.cells[self._state_place(job)])

    def _holder(self, device: int) -> int:
        return int(self.board.cells[self._size + self._place[device]])

    def _over_place(self, job: str, device: int) -> int:
        return (2 + self._jobs[job]) * self._size + self._place[device]

    def _is_over(self, job: str, device: int) -> bool:
        return bool(self.board.cells[self._over_place(job, device)])

    def _set_over(self, job: str, device: int) -> None:
        self.board.cells[self._over_place(job, device)] = 1

    def _blockers(self, devices: Iterable[int]) -> set[int]:
        """The jobs that have the turn on one of ``devices``, or are next there."""
        found = set()
        for device in devices:
            if holder := self._holder(device):
                found.add(holder - 1)
            elif (head := self._head(device)) is not None:
                found.add(self._jobs[head[0]])
        return found

    def _head(self, device: int) -> Key | None:
        """The next block on ``device``; ``None`` if all jobs are over."""
        order, place = self.orders[device], self._place[device]
        over = {job: self._is_over(job, device) for job in self._present[device]}
        if all(over.values()):
            return None
        while True:
            lap, at = divmod(int(self.board.cells[place]), len(order))
            job, block, number = order[at]
            if not over[job]:
                return job, block, lap * self.counts[job] + number
            self.board.cells[place] += 1
