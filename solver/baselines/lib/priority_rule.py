"""List scheduling by keys: operation (block, m) is the more urgent the less ``offset + m * interval`` is.

It does for any block graph what :mod:`weft.solver.baselines.lib.building_block` does for pipelines: a free device runs
the most urgent ready operation, weight gradients only if there is nothing else; an operation may overtake more urgent
ones only if the memory of each of its devices still has room for those, in the order of their keys. So any problem that
fits when it runs in the order of the keys never gets stuck.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.solver.baselines.lib.amounts import Amounts
from weft.solver.baselines.lib.base import Row
from weft.solver.baselines.lib.time_pass import TimePass
from weft.solver.control.clock import checked
from weft.solver.problem import BlockKind, Problem


def fits_in_order(problem: Problem, micro_batches: int, offsets: Sequence[float], interval: float,
                  amounts: Amounts) -> bool:
    """Whether the operations fit the devices' memory in the order of their keys."""
    levels = [0] * len(problem.devices)
    keys = sorted((offset + m * interval, i) for m in range(micro_batches) for i, offset in enumerate(offsets))
    for _, i in checked(keys, 1024):
        for d in problem.blocks[i].devices:
            room = amounts.room[d]
            if room is not None and levels[d] + amounts.take[d][i] > room:
                return False
            levels[d] += amounts.change[d][i]
    return True


def schedule_by_priority(problem: Problem, micro_batches: int, offsets: Sequence[float], interval: float, lead: float,
                   amounts: Amounts, *, reserve: bool = True) -> tuple[float, list[Row]] | None:
    """Makespan and per-device orders, or ``None`` if memory leaves it stuck.

    ``offsets`` (per block) and ``interval`` are in the problem's time unit; ``offsets`` rise along dependencies. An
    operation's key may exceed the least one still to be run on its devices by no more than ``lead``. With ``reserve`` a
    block on several devices that waits for the last of them keeps the others free.
    """
    if amounts.tables.fit_kernel(micro_batches):
        filler = [block.kind == BlockKind.WEIGHT_GRAD for block in problem.blocks]
        return amounts.tables.by_priority(micro_batches, filler, offsets, interval, lead, reserve)
    run = _ByPriority(problem, micro_batches, offsets, interval, lead, amounts, reserve)
    return (max(run.free), run.rows) if run.finish() else None


class _ByPriority(TimePass):
    """One pass through time."""

    def __init__(self, problem: Problem, micro_batches: int, offsets: Sequence[float], interval: float, lead: float,
                 amounts: Amounts, reserve: bool) -> None:
        super().__init__(problem, micro_batches, amounts)
        self.offsets, self.interval, self.lead, self.reserve = offsets, interval, lead, reserve
        self.filler = [block.kind == BlockKind.WEIGHT_GRAD for block in problem.blocks]

    def finish(self) -> bool:
        """Run to the end; whether everything has run."""
        for now in self.moments():
            self._start_what_can(now)
        return not self.left

    def _start_what_can(self, now: float) -> None:
        ready = []
        for i in self.open:
            m, devices = self.following[i], self.problem.blocks[i].devices
            if self.arrival[i * self.n + m] <= now and (
                    self.free[devices[0]] <= now or (self.reserve and len(devices) > 1)):
                ready.append((self.filler[i], self.offsets[i] + m * self.interval, i))
        ready.sort()
        kept: set[int] = set()  # devices kept free for a more urgent block on several
        for _, key, i in ready:
            devices = self.problem.blocks[i].devices
            idle = all(self.free[d] <= now for d in devices)
            if not (idle or (self.reserve and len(devices) > 1)) or any(d in kept for d in devices):
                continue
            if not self._fits(i, key):
                continue
            if idle:
                self.start(i, now)
            else:
                kept.update(devices)

    def _fits(self, i: int, key: float) -> bool:
        """Whether block ``i`` fits now, and all that it overtakes fits after it."""
        for d in self.problem.blocks[i].devices:
            room = self.amounts.room[d]
            change, take = self.amounts.change[d], self.amounts.take[d]
            level = self.levels[d]
            if room is not None and level + take[i] > room:
                return False
            more_urgent: list[tuple[float, int]] = []
            for j in self.problem.blocks_on[d]:
                m = self.following[j]
                other = self.offsets[j] + m * self.interval
                while other < key and m < self.n:
                    more_urgent.append((other, j))
                    m, other = m + 1, other + self.interval
            if not more_urgent:
                continue
            more_urgent.sort()
            if key > more_urgent[0][0] + self.lead and not self.filler[i]:
                return False
            if room is None or change[i] <= 0:
                continue
            level += change[i]
            for _, j in more_urgent:
                if level + take[j] > room:
                    return False
                level += change[j]
        return True
