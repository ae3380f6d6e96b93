"""Whose turn it is on each device and lane of a rank: jobs take turns in the order of the plan, lap after lap.

All ranks have one order of their common operations, and a rank skips only those of a job that is over there; the rest
keeps one order. So no rank waits for another in a circle, however jobs end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from weft.runtime.share.boards import GONE, HERE, FileBoard
from weft.runtime.share.stages_plan import Key


class JobOver(Exception):
    """The job's turns are over: it has ended, or failed on some rank."""


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
        # A job without blocks on a device counts as over there, for the loop that looks for the next job.
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
        """End the turn on ``devices``: its work is done, or has failed."""
        with self.board.locked():
            for device in devices:
                place = self._place[device]
                self.board.cells[place] += 1
                self.board.cells[self._size + place] = 0

    def end(self, job: str, devices: Iterable[int]) -> None:
        """The ``job`` takes no more turns on ``devices``; a current turn continues until given back: no other job may
        begin there before."""
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
        """The process of ``job`` has ended: its turns are over, and current ones are given back."""
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
            if holder := self._holder(device):  # no job passes over the one with the turn: that one gives it back
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
