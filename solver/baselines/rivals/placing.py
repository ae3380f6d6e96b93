"""Operations put one after the other, each at the earliest time that its device and its producer allow.

The common part of the schedulers of zero-bubble pipelines (:mod:`weft.solver.baselines.rivals.zb_auto`,
:mod:`weft.solver.baselines.rivals.zb_v_auto`): they decide which operation comes next on which device; this class
records its end, the memory levels, the waiting weight gradients, and the idle time of each device. Links are assumed
free at all times; orders are timed anew for comparison.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.solver.baselines.lib.base import Row
from weft.solver.baselines.lib.building_block import StepChain


class NoRoom(Exception):
    """A device lacks memory for the next operation, and no weight gradient is left whose end frees any."""


class Placing:
    """The placed part of ``micro_batches`` micro-batches of ``chain`` (its steps and their weight gradients).

    ``ends[step]``: the end of each micro-batch of a step, as far as placed. ``now``, ``level`` and ``idle`` are each
    device's last end, its level then, and its idle time since its first start. Times are in the problem's unit, memory
    as in :class:`~weft.solver.baselines.lib.amounts.Amounts`; ``room`` replaces the chain's own.
    """

    def __init__(self, chain: StepChain, micro_batches: int, room: Sequence[int | None] | None = None) -> None:
        devices = len(chain.room)
        self.chain, self.micro_batches = chain, micro_batches
        self.room = [float("inf") if amount is None else amount for amount in (chain.room if room is None else room)]
        self.ends: list[list[float]] = [[] for _ in chain.steps]
        self.now = [0.0] * devices
        self.level = [0] * devices
        self.idle = [0.0] * devices
        self.rows: list[Row] = [[] for _ in range(devices)]
        self._weights: list[list[tuple[int, int]]] = [[] for _ in range(devices)]  # of which step, which micro-batch
        self._first = [0] * devices  # of these, the first that waits

    def count(self, step: int) -> int:
        """The number of micro-batches of ``step`` placed."""
        return len(self.ends[step])

    def is_open(self, step: int) -> bool:
        """Whether ``step`` has a next micro-batch that has run the step before."""
        done = len(self.ends[step])
        return done < self.micro_batches and (not step or done < len(self.ends[step - 1]))

    def arrival(self, step: int) -> float:
        """The time at which the next micro-batch of ``step``, which must be open, has its inputs."""
        return self.ends[step - 1][len(self.ends[step])] + self.chain.lag[step] if step else 0.0

    def fits(self, step: int) -> bool:
        """Whether the memory that is free now has room for ``step``."""
        d = self.chain.device[step]
        return self.level[d] + self.chain.take[step] <= self.room[d]

    def waiting(self, d: int) -> int:
        """The number of weight gradients that wait on device ``d``."""
        return len(self._weights[d]) - self._first[d]

    def put(self, step: int) -> None:
        """Place the next micro-batch of ``step``; weight gradients come before it while memory is short."""
        chain, d = self.chain, self.chain.device[step]
        while not self.fits(step):
            self.put_weight(d)
        m, arrival = len(self.ends[step]), self.arrival(step)
        if self.rows[d]:
            self.idle[d] += max(0.0, arrival - self.now[d])
        self.now[d] = max(self.now[d], arrival) + chain.duration[step]
        self.ends[step].append(self.now[d])
        self.level[d] += chain.change[step]
        self.rows[d].append((chain.steps[step], m))
        if chain.filler[step] >= 0:
            self._weights[d].append((step, m))

    def put_weight(self, d: int) -> None:
        """Place the weight gradient that has waited longest. Raises :class:`NoRoom` if none waits or fits."""
        if self._first[d] == len(self._weights[d]):
            raise NoRoom
        step, m = self._weights[d][self._first[d]]
        if self.level[d] + self.chain.filler_take[step] > self.room[d]:
            raise NoRoom
        self._first[d] += 1
        self.now[d] += self.chain.filler_duration[step]
        self.level[d] += self.chain.filler_change[step]
        self.rows[d].append((self.chain.filler[step], m))

    def weights_before(self, step: int) -> float:
        """The time of the weight gradients that make room for ``step``."""
        d = self.chain.device[step]
        level, time = self.level[d] + self.chain.take[step], 0.0
        for i, _ in self._weights[d][self._first[d]:]:
            if level <= self.room[d]:
                break
            level += self.chain.filler_change[i]
            time += self.chain.filler_duration[i]
        return time

    def fill(self, d: int, until: float) -> None:
        """Place waiting weight gradients that end by ``until``."""
        while self.waiting(d) and self.now[d] + self._next_weight(d) <= until and self._weight_fits(d):
            self.put_weight(d)

    def fill_beyond(self, d: int, until: float, allowance: float) -> None:
        """Place one more, though it ends after ``until``, if the gap is longer than ``allowance``."""
        if self.waiting(d) and until > self.now[d] and until - self.now[d] > allowance and self._weight_fits(d):
            self.put_weight(d)

    def finish(self) -> list[Row]:
        """Place all weight gradients that still wait; the per-device orders."""
        for d in range(len(self.rows)):
            while self.waiting(d):
                self.put_weight(d)
        return self.rows

    def _next_weight(self, d: int) -> float:
        return self.chain.filler_duration[self._weights[d][self._first[d]][0]]

    def _weight_fits(self, d: int) -> bool:
        return self.level[d] + self.chain.filler_take[self._weights[d][self._first[d]][0]] <= self.room[d]
