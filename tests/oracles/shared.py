"""Random small jobs on the same GPUs, and their least common period by trying every start.

It is read off the jobs themselves, not off the one problem that is made of them: blocks of all jobs take turns on a
GPU and on each of its lanes, and what all hold and take on a GPU must fit into what it has. A job is a chain of blocks.
Either its steps follow each other, each after all of the one before; or there is one of it a round, and a step may
begin before the one before has ended. Then no block need wait for a whole period or longer: without that period all
that follows starts a period earlier, at the same time of a round, and whatever is held is held for no longer. So the
starts that are tried are all there are. Durations are whole numbers, and so is the least period of the ones that are
tried: that of all schedules, rounded up, as a schedule of one period is one of every longer period too.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from weft.models.share.job import Job, job_of
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem

#: Starts that are tried at most.
_MOST = 60_000


class TooLarge(Exception):
    """More starts than are tried."""


def drawn_jobs(number: int) -> tuple[list[Job], tuple[int, ...]]:
    """Two or three jobs on one or two GPUs with a lane each, and how many steps of each a round has."""
    draw = random.Random(number)
    gpus, count = draw.choice((1, 1, 2)), draw.choice((2, 2, 3))
    capacity = draw.choice((None, 2, 3, 4))
    jobs, ratio = [], []
    for j in range(count):
        held = draw.randint(0, 1) if capacity is not None else 0
        devices = tuple(device for g in range(gpus) for device in (
            Device(f"gpu{g}", None if capacity is None else capacity - held, held),
            Device(f"net{g}", lane_of=f"gpu{g}")))
        length = draw.randint(1, 3 if count == 2 else 2)
        on = [tuple(sorted(draw.sample(range(2 * gpus), draw.choice((1, 1, 1, 2)) if gpus == 2 else 1)))
              for _ in range(length)]
        in_line = draw.random() < 0.7
        taken = draw.randint(0, 2) if length > 1 and capacity is not None else 0
        same = length > 1 and {d // 2 for d in on[0]} == {d // 2 for d in on[-1]} and len(on[0]) == len(on[-1]) == 1
        blocks = []
        for i in range(length):
            after = [Dependency(f"b{i - 1}", draw.choice((0, 0, 0, 1)))] if i else []
            if not i and in_line:
                after.append(Dependency(f"b{length - 1}", distance=1))
            memory = (taken if not i else -taken) if same and i in (0, length - 1) else 0
            blocks.append(Block(f"b{i}", BlockKind.OTHER, on[i], draw.randint(1, 4), (memory,),
                                (draw.choice((0, 0, 1)) if capacity is not None else 0,), tuple(after)))
        jobs.append(job_of("abc"[j], Problem("abc"[j], devices, tuple(blocks))))
        ratio.append(draw.choice((1, 1, 2)) if in_line else 1)
    return jobs, tuple(ratio) if min(ratio) == 1 else (1,) * count


@dataclass(frozen=True)
class _Operation:
    """A block of one step in a round. ``lag``: what lies between the one before it in its chain and it."""

    job: int
    devices: tuple[int, ...]
    duration: int
    lag: int
    first: bool  # of its job's in a round
    closes: int | None  # what lies between it, its job's last of a round, and the next round, where that waits for it
    takes: tuple[int, ...]  # at its start, by GPU
    gives: tuple[int, ...]  # at its end


def least_shared_period(jobs: Sequence[Job], ratio: Sequence[int], most: int) -> int | None:
    """The least whole period up to ``most`` of rounds with ``ratio`` steps of each of ``jobs``; ``None``: there is
    none. Raises :class:`TooLarge`."""
    operations = [op for number, (job, steps) in enumerate(zip(jobs, ratio, strict=True))
                  for op in _chain(number, job, steps)]
    gpus = [device for device in jobs[0].problem.devices if device.lane_of is None]
    room: list[float] = []
    for g, gpu in enumerate(gpus):
        held = sum(job.held[g] for job in jobs)
        whole = jobs[0].capacity[g]
        room.append(float("inf") if whole is None else whole - held)
        assert gpu.lane_of is None
    if min(room) < 0:
        return None
    least = max(op.duration for op in operations)
    return next((period for period in range(least, most + 1) if _Round(operations, room, period).exists(0, 0)), None)


def _chain(number: int, job: Job, steps: int) -> list[_Operation]:
    problem = job.problem.plain()
    gpus = [device.name for device in problem.devices if device.lane_of is None]
    owner = [gpus.index(device.lane_of or device.name) for device in problem.devices]
    back = next((int(wait.lag) for wait in problem.blocks[0].after if wait.distance == 1), None)
    found = []
    for step in range(steps):
        for i, block in enumerate(problem.blocks):
            takes, gives = [0] * len(gpus), [0] * len(gpus)
            for device in block.devices:
                change, while_it_runs = int(block.memory_on(device)), int(block.workspace_on(device))
                takes[owner[device]] += max(change, 0) + while_it_runs
                gives[owner[device]] += min(change, 0) - while_it_runs
            lag = next((int(wait.lag) for wait in block.after if wait.distance == 0), 0) if i else back or 0
            last = step == steps - 1 and i == len(problem.blocks) - 1
            found.append(_Operation(number, tuple(block.devices), int(block.duration), lag, step == i == 0,
                                    back if last else None, tuple(takes), tuple(gives)))
    return found


class _Round:
    """Whether operations, repeated every ``period``, have starts."""

    def __init__(self, operations: Sequence[_Operation], room: Sequence[float], period: int) -> None:
        self.operations, self.room, self.period = operations, room, period
        self.starts: list[int] = []
        self.busy = [0] * (1 + max(d for op in operations for d in op.devices))  # by device, a bit for each time
        self.tried = 0
        self.needs_room = min(room) < float("inf")

    def exists(self, at: int, job_began: int) -> bool:
        """Whether the operations from ``at`` on have starts beside those before; the job of the one before it
        ``job_began`` then."""
        if at == len(self.operations):
            return True
        op = self.operations[at]
        if op.first:
            ready, last = 0, 0 if at == 0 else self.period - 1
        else:
            before = self.operations[at - 1]
            ready = self.starts[-1] + before.duration + op.lag
            last = ready + self.period - 1
        for start in range(ready, last + 1):
            began = start if op.first else job_began
            if op.closes is not None and start + op.duration + op.closes > began + self.period:
                break
            if self._try(at, op, start, began):
                return True
        return False

    def _try(self, at: int, op: _Operation, start: int, began: int) -> bool:
        self.tried += 1
        if self.tried > _MOST:
            raise TooLarge
        mask = 0
        for time in range(start, start + op.duration):
            mask |= 1 << time % self.period
        if any(self.busy[device] & mask for device in op.devices):
            return False
        for device in op.devices:
            self.busy[device] |= mask
        self.starts.append(start)
        job_ends = at + 1 == len(self.operations) or self.operations[at + 1].first
        found = (not (job_ends and self.needs_room) or self._fits()) and self.exists(at + 1, began)
        if not found:
            self.starts.pop()
            for device in op.devices:
                self.busy[device] &= ~mask
        return found

    def _fits(self) -> bool:
        """Whether the level is within the room right after every start, in the steady state, of all whole jobs."""
        placed = list(zip(self.operations, self.starts, strict=False))
        for gpu, room in enumerate(self.room):
            if room == float("inf"):
                continue
            for op, time in placed:
                if op.takes[gpu] and sum(
                        other.takes[gpu] * ((time - start) // self.period + 1)
                        + other.gives[gpu] * ((time - start - other.duration) // self.period + 1)
                        for other, start in placed) > room:
                    return False
        return True
