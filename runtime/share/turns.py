"""Whose turn it is on each device and lane of a rank: jobs take it in the order of the plan, lap after lap.

All ranks have one order of what they do together, and a rank skips only what belongs to a job that is over there; what
is left is in one order still. So no rank waits for another in a circle, whoever ends when.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence

from weft.runtime.share.job_plans import Key

__all__ = ["JobOver", "Turns"]


class JobOver(Exception):
    """The job's turns are over: it has ended, or failed on some rank."""


class Turns:
    """The turns of one rank. ``orders``: per device, the blocks of one lap; ``steps``: how many of each job a lap has.
    """

    def __init__(self, orders: Mapping[int, Sequence[Key]], steps: Mapping[str, int]) -> None:
        self.orders, self.steps = {device: tuple(order) for device, order in orders.items()}, dict(steps)
        self._at = dict.fromkeys(self.orders, 0)
        self._taken: set[int] = set()  # the devices on which somebody has the turn
        self._over: set[tuple[str, int]] = set()
        self._changed = threading.Condition()

    def take(self, key: Key, devices: Iterable[int]) -> None:
        """Wait until ``key`` is next on all ``devices``. Raises :class:`JobOver` if its job is over on one of them."""
        wanted = tuple(devices)
        with self._changed:
            while True:
                if any((key[0], device) in self._over for device in wanted):
                    raise JobOver(key[0])
                if self._taken.isdisjoint(wanted) and all(self._head(device) == key for device in wanted):
                    self._taken.update(wanted)
                    return
                self._changed.wait()

    def give(self, devices: Iterable[int]) -> None:
        """What had the turn on ``devices`` is done, or has failed."""
        with self._changed:
            for device in devices:
                self._taken.remove(device)
                self._at[device] += 1
            self._changed.notify_all()

    def end(self, job: str, devices: Iterable[int]) -> None:
        """The ``job`` takes no turn on ``devices`` any more; where it has it just now, it keeps it until it gives it
        back: nobody else may begin there before."""
        with self._changed:
            self._over |= {(job, device) for device in devices}
            self._changed.notify_all()

    def _head(self, device: int) -> Key | None:
        """What is next on ``device``; ``None`` where all jobs are over."""
        order = self.orders[device]
        if all((job, device) in self._over for job, _, _ in order):
            return None
        while True:
            lap, at = divmod(self._at[device], len(order))
            job, block, number = order[at]
            if (job, device) not in self._over:
                return job, block, lap * self.steps[job] + number
            self._at[device] += 1
