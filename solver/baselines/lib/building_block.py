"""From a building block to a schedule: repeat it, squeeze it and reorder it under a memory cap, in one pass.

A *building block* (Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024, section 3) says when one
micro-batch runs each forward and each gradient, counted from its first; it is repeated once an *interval*. The times
are only an order of preference here: operation (block, m) has the key ``offset + m * interval``, and a free device runs
the ready operation with the least key. That is the paper's squeezing (no waiting for a slot) and reordering (warm-up
and cool-down use slots that the block leaves open) at once, with the problem's own durations. Weight gradients, which
have no dependents, fill idle time and free memory when it is short.

An operation may overtake another of a smaller key only if the device's memory still has room for all overtaken ones
after it, in the order of their keys and with each weight gradient right after its input gradient. So a building block
that fits when it is run that way never gets stuck.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from weft.solver.baselines.lib.amounts import Amounts
from weft.solver.baselines.lib.base import Row
from weft.solver.control.clock import checkpoint
from weft.solver.orders.lists import ChainTables, fits_kernel
from weft.solver.pipeline import Pipeline

_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class BuildingBlock:
    """When one micro-batch runs each step of a :class:`StepChain`, and how far apart micro-batches are; in any unit.

    ``offsets`` rise from each step to the next. ``lead`` is the most by which an operation's key may exceed the least
    key still to be run on its device: 0 runs the operations in the order of their keys. ``patience`` is how long a
    device waits for an operation that is about to become ready instead of running a weight gradient, in lengths of the
    latter.
    """

    offsets: tuple[float, ...]
    interval: float
    lead: float = float("inf")
    patience: float = 1.0


@dataclass(frozen=True, slots=True)
class Built:
    """The result of a pass through time: per-device orders, their makespan (each operation as early as the orders
    allow, links free at all times) and their pace, the time between micro-batches in the second half."""

    rows: list[Row]
    makespan: float
    pace: float


@dataclass(frozen=True)
class StepChain:
    """A training pipeline as the pass sees it.

    *Steps* are the blocks with dependents, forwards and then gradients, each after the one before; ``steps`` are
    indices into ``problem.blocks``. ``filler`` is the weight gradient after a step, or -1. ``lag`` is the time from the
    end of the step before. Times are in the problem's unit; ``take`` and ``change`` are those of
    :class:`~weft.solver.baselines.lib.amounts.Amounts` for each step, ``filler_take`` and ``filler_change`` for its
    filler. ``room`` is each device's memory, ``None`` for unlimited.
    """

    steps: tuple[int, ...]
    filler: tuple[int, ...]
    device: tuple[int, ...]
    duration: tuple[float, ...]
    filler_duration: tuple[float, ...]
    lag: tuple[float, ...]
    take: tuple[int, ...]
    change: tuple[int, ...]
    filler_take: tuple[int, ...]
    filler_change: tuple[int, ...]
    room: tuple[int | None, ...]

    @classmethod
    def of(cls, pipeline: Pipeline) -> StepChain:
        """The chain of a training ``pipeline``, with its own durations, transfers and memory."""
        problem = pipeline.problem
        steps, filler = _steps(pipeline)
        device = tuple(problem.blocks[i].devices[0] for i in steps)
        amounts = Amounts.of(problem)
        lag = [0.0]
        for before, step in pairwise(steps):
            name = problem.blocks[before].name
            lag.append(max(item.lag for item in problem.blocks[step].after if item.block == name and not item.distance))
        return cls(tuple(steps), tuple(filler), device,
                   tuple(float(problem.blocks[i].duration) for i in steps),
                   tuple(float(problem.blocks[i].duration) if i >= 0 else 0.0 for i in filler),
                   tuple(lag),
                   tuple(amounts.take[d][i] for d, i in zip(device, steps, strict=True)),
                   tuple(amounts.change[d][i] for d, i in zip(device, steps, strict=True)),
                   tuple(amounts.take[d][i] if i >= 0 else 0 for d, i in zip(device, filler, strict=True)),
                   tuple(amounts.change[d][i] if i >= 0 else 0 for d, i in zip(device, filler, strict=True)),
                   amounts.room)

    @classmethod
    def uniform(cls, pipeline: Pipeline, *, whole: bool = False) -> StepChain:
        """The chain as published schedules assume it: a forward, an input and a weight gradient take 1 each (a full
        backward 2), a stage's activation is 1, and there are neither transfers nor limits to memory.

        ``whole`` treats split backwards as full ones and omits their weight gradients.
        """
        steps, filler = _steps(pipeline)
        if whole:
            filler = [-1] * len(steps)
        stages = len(pipeline.stages)
        full = [i >= stages and filler[i] < 0 for i in range(len(steps))]
        return cls(tuple(steps), tuple(filler), tuple(pipeline.problem.blocks[i].devices[0] for i in steps),
                   duration=tuple(2.0 if both else 1.0 for both in full), filler_duration=(1.0,) * len(steps),
                   lag=(0.0,) * len(steps),
                   take=tuple(int(i < stages) for i in range(len(steps))),
                   change=tuple(1 if i < stages else -int(full[i]) for i in range(len(steps))),
                   filler_take=(0,) * len(steps), filler_change=(-1,) * len(steps),
                   room=(None,) * len(pipeline.problem.devices))

    @cached_property
    def tables(self) -> ChainTables:
        """Arrays for compiled passes over the chain."""
        return ChainTables(self.device, [i >= 0 for i in self.filler],
                           (self.duration, self.filler_duration, self.lag),
                           (self.take, self.change, self.filler_take, self.filler_change))

    def run(self, block: BuildingBlock, micro_batches: int, room: Sequence[int | None] | None = None) -> Built | None:
        """``micro_batches`` of ``block``, or ``None`` if it gets stuck for memory (``room`` instead of its own)."""
        room = self.room if room is None else room
        limits = [amount for amount in room if amount is not None]
        if not fits_kernel([self.tables.largest, *limits], 2 * len(self.steps) * micro_batches):
            return _RepeatedBlock(self, block, micro_batches, room).run()
        made = self.tables.run(room, micro_batches, block.offsets, (block.interval, block.lead, block.patience))
        if made is None:
            return None
        rows, makespan, pace = made
        number = (*self.steps, *self.filler)
        return Built([[(number[i], m) for i, m in row] for row in rows], makespan, pace)


def _steps(pipeline: Pipeline) -> tuple[list[int], list[int]]:
    """The blocks in a chain, as a micro-batch runs them, and the weight gradient after each, or -1.

    A stage 0 with a weight gradient alone ends the chain with it.
    """
    steps, filler = [stage.forward for stage in pipeline.stages], [-1] * len(pipeline.stages)
    for stage in reversed(pipeline.stages):
        steps.append((*stage.gradient, *stage.weights)[0])
        filler.append(stage.weights[0] if stage.gradient and stage.weights else -1)
    return steps, filler


class _RepeatedBlock:
    """One pass through time; see the module. ``following``: each step's next micro-batch; ``arrival`` and ``earliest``:
    when those that have run the step before arrive, the latter without devices waiting for an operation that then does
    not run: the times of the finished orders, as is ``early_free``. ``waiting``: weight gradients of each device, by
    step and micro-batch."""

    def __init__(self, chain: StepChain, block: BuildingBlock, micro_batches: int, room: Sequence[int | None]) -> None:
        self.chain, self.block, self.n = chain, block, micro_batches
        devices, steps = len(chain.room), len(chain.steps)
        self.room = [_NEVER if amount is None else amount for amount in room]
        self.mine = [[i for i in range(steps) if chain.device[i] == d] for d in range(devices)]
        self.following = [0] * steps
        self.arrival: list[list[float]] = [[0.0] * micro_batches, *([] for _ in chain.steps[1:])]
        self.earliest: list[list[float]] = [[0.0] * micro_batches, *([] for _ in chain.steps[1:])]
        self.early_free, self.free, self.level = [0.0] * devices, [0.0] * devices, [0] * devices
        self.waiting = [deque[tuple[int, int]]() for _ in range(devices)]
        self.rows: list[Row] = [[] for _ in range(devices)]
        self.events = [(0.0, d) for d in range(devices)]

    def run(self) -> Built | None:
        while self.events:
            checkpoint()
            now, d = event = heapq.heappop(self.events)
            while self.events and self.events[0] == event:
                heapq.heappop(self.events)
            if self.free[d] <= now:
                self._decide(d, now)
        if any(m < self.n for m in self.following) or any(self.waiting):
            return None
        middle = self.earliest[len(self.earliest) // 2]
        half = self.n // 2
        pace = (middle[-1] - middle[half]) / (self.n - 1 - half) if self.n - 1 > half else 0.0
        return Built(self.rows, max(self.early_free), pace)

    def _key(self, i: int) -> float:
        """Of the next micro-batch of step ``i``; never if all have run."""
        m = self.following[i]
        return self.block.offsets[i] + m * self.block.interval if m < self.n else _NEVER

    def _arrival(self, i: int) -> float:
        """When the next micro-batch of step ``i`` arrives; never if that is not known."""
        m, arrived = self.following[i], self.arrival[i]
        return arrived[m] if m < len(arrived) else _NEVER

    def _decide(self, d: int, now: float) -> None:
        """Start the best available operation on device ``d``, which is free, if there is one."""
        chain = self.chain
        least = min((self._key(i) for i in self.mine[d]), default=_NEVER)
        ready = sorted((self._key(i), i) for i in self.mine[d] if self._arrival(i) <= now)
        for key, i in ready:
            if key > least + self.block.lead:
                break
            if self.level[d] + chain.take[i] <= self.room[d] and (key == least or self._may_overtake(d, i, key)):
                self._start(d, i, now)
                return
        if not self.waiting[d]:
            return
        i, m = self.waiting[d][0]
        length = chain.filler_duration[i]
        soonest = min((time for time in map(self._arrival, self.mine[d]) if time > now), default=_NEVER)
        if not ready and soonest - now < self.block.patience * length:
            return  # the operation about to arrive would be delayed
        if self.level[d] + chain.filler_take[i] <= self.room[d]:
            self.waiting[d].popleft()
            self.level[d] += chain.filler_change[i]
            self.early_free[d] += length
            self._run(d, (chain.filler[i], m), now + length)

    def _start(self, d: int, i: int, now: float) -> None:
        chain, m = self.chain, self.following[i]
        self.following[i] = m + 1
        self.level[d] += chain.change[i]
        if chain.filler[i] >= 0:
            self.waiting[d].append((i, m))
        early = self.early_free[d] = max(self.earliest[i][m], self.early_free[d]) + chain.duration[i]
        end = now + chain.duration[i]
        self._run(d, (chain.steps[i], m), end)
        if i + 1 < len(chain.steps):
            lag = chain.lag[i + 1]
            self.arrival[i + 1].append(end + lag)
            self.earliest[i + 1].append(early + lag)
            heapq.heappush(self.events, (end + lag, chain.device[i + 1]))

    def _run(self, d: int, operation: tuple[int, int], end: float) -> None:
        self.rows[d].append(operation)
        self.free[d] = end
        heapq.heappush(self.events, (end, d))

    def _may_overtake(self, d: int, i: int, key: float) -> bool:
        """Whether the operations that step ``i`` overtakes still fit after it, each weight gradient right after its
        gradient."""
        def change(j: int) -> int:
            return chain.change[j] + (chain.filler_change[j] if chain.filler[j] >= 0 else 0)

        chain, interval = self.chain, self.block.interval
        level = self.level[d] + sum(chain.filler_change[j] for j, _ in self.waiting[d]) + change(i)
        if change(i) <= 0:
            return True
        overtaken: list[tuple[float, int]] = []
        for j in self.mine[d]:
            m, other = self.following[j], self._key(j)
            while m < self.n and other < key and j != i:
                overtaken.append((other, j))
                other += interval
                m += 1
        for _, j in sorted(overtaken):
            if level + chain.take[j] > self.room[d]:
                return False
            level += change(j)
        return True
