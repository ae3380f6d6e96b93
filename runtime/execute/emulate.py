"""Emulation of a schedule without its GPUs: each block sleeps for its predicted duration.

A block's result is the time at which it ended. A consumer starts no earlier than the transfer's lag after that time,
and transfers over one link are serialised, as in the timing of schedules. The messages themselves take real time, which
a longer lag hides; with a lag of 0 it adds to the schedule.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from weft.runtime.execute.executor import Parcel, Task, Worker
from weft.runtime.interface.training import Boundary
from weft.runtime.plan.plan import Plan
from weft.runtime.plan.program import Work
from weft.runtime.ranks.stopwatch import sleep_until
from weft.solver.problem import Dependency

MOMENTS = "moments"  # the only tensor of every parcel
#: The most seconds by which :func:`oversleep` corrects a sleep.
MOST_LATE = 0.5e-3


def oversleep(samples: int = 25) -> float:
    """The typical overrun of a short sleep on this machine, in seconds (about 0.1 ms), at most :data:`MOST_LATE`.

    Emulated blocks sleep that much less. They do not spin for the rest: with more ranks than cores, a spinning rank
    would occupy the core of a rank that wakes up. On a busy machine, where wake-ups wait for a core, the overrun is not
    predictable, and without the limit blocks would end too early.
    """
    excess = []
    for _ in range(samples):
        begun = time.perf_counter()
        time.sleep(0.001)
        excess.append(time.perf_counter() - begun - 0.001)
    return min(statistics.median(excess), MOST_LATE)


class Emulation(Worker):
    """Emulates the blocks of ``plan`` on one rank. ``seconds_per_unit``: the length of the problem's time unit.
    ``now``: the clock that all ranks share.

    The result of a block is the earliest start of each of its consumers, in the order of
    :meth:`~weft.solver.problem.Problem.dependencies`. The rank at a link's source tracks when the link is free, as it
    runs all producers of the link's transfers, on one device or lane, in their order.
    """

    def __init__(self, plan: Plan, seconds_per_unit: float, now: Callable[[], float]) -> None:
        self.plan, self.seconds_per_unit, self.now = plan, seconds_per_unit, now
        self.late = oversleep()
        problem = plan.problem
        self._leaving: list[list[Dependency]] = [[] for _ in problem.blocks]
        self._waits: list[list[tuple[int, int, int]]] = [[] for _ in problem.blocks]  # (producer, place, distance)
        for producer, consumer, dependency in problem.dependencies():
            self._waits[consumer].append((producer, len(self._leaving[producer]), dependency.distance))
            self._leaving[producer].append(dependency)
        self._link_free: dict[str, float] = {}

    def reads(self, work: Work) -> Sequence[Work]:
        """All the work that ``work`` waits for."""
        return self.plan.awaits(work)

    def layout(self, what: Work, target: int) -> Mapping[str, Boundary]:
        """One time per consumer."""
        return {MOMENTS: Boundary((len(self._leaving[self.plan.vocabulary.known(what)[0]]),), torch.float64)}

    def prepare(self, work: Work) -> Callable[[Mapping[Work, Parcel]], None] | None:
        """Wait until all transfers to ``work`` are complete."""
        producers = list(self._producers(work))

        def wait(results: Mapping[Work, Parcel]) -> None:
            sleep_until(max(float(results[producer][MOMENTS][place]) for producer, place in producers), self.now,
                        self.late)

        return wait if producers else None

    def task(self, work: Work) -> Task:
        """Sleep for the block's duration."""
        block, _ = self.plan.vocabulary.known(work)
        leaving, seconds = self._leaving[block], self.plan.problem.blocks[block].duration * self.seconds_per_unit

        def take(results: Mapping[Work, Parcel]) -> Parcel:
            sleep_until(self.now() + seconds, self.now, self.late)
            end = self.now()
            return {MOMENTS: torch.tensor([self._arrival(dependency, end) for dependency in leaving],
                                          dtype=torch.float64)}

        return take

    def _arrival(self, dependency: Dependency, end: float) -> float:
        lag = dependency.lag * self.seconds_per_unit
        if dependency.link is None:
            return end + lag
        self._link_free[dependency.link] = max(end, self._link_free.get(dependency.link, end)) + lag
        return self._link_free[dependency.link]

    def _producers(self, work: Work) -> Iterator[tuple[Work, int]]:
        block, micro_batch = self.plan.vocabulary.known(work)
        for producer, place, distance in self._waits[block]:
            if micro_batch >= distance:
                yield self.plan.vocabulary.work(producer, micro_batch - distance), place
