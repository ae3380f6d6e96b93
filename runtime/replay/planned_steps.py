"""Steps of a plan before training, which measure the times of its blocks and messages, and its memory.

All ranks run their instructions through the same executor as later, with the same transport, buffers and peers. No
parameter is updated and no loss is read; the caller saves and restores buffers, gradients and random state. The first
step selects kernels, and its memory is recorded, which takes time; gradients exist before it, as in later steps. Timed
steps follow.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from torch import Tensor

from weft.runtime.execute.executor import Executor
from weft.runtime.interface.training import Training
from weft.runtime.measure.measure import memories, memory_of
from weft.runtime.plan.buffers import BufferTable, waiting_bytes
from weft.runtime.plan.plan import Plan
from weft.runtime.plan.timeline import Measured, Timeline
from weft.runtime.ranks.session import Session
from weft.runtime.replay.options import seconds_in_unit
from weft.runtime.replay.run import Trainer
from weft.runtime.transports.one_host.one_sided import releases

#: Seconds that the timed steps may take together, and their least and most number; of a step that takes longer than
#: :data:`LONG` seconds, one is timed. Where they differ by no more than the share :data:`ALIKE`, those of a quarter of
#: these seconds are enough.
WORTH, FEWEST, MOST, LONG, ALIKE = 1.0, 2, 6, 5.0, 0.03


@dataclass(frozen=True)
class StepMemory:
    """Bytes by rank. ``peaks``: the peak memory of a step: weights, gradients, buffers, messages and what blocks keep,
    without an optimizer's values. ``slots``: room for received messages. ``sends_at_once``: whether a rank's message is
    written to its receiver as soon as that has room for it. ``plan``, ``tables``: what was run. ``laps``: when."""

    peaks: tuple[int, ...]
    slots: tuple[int, ...]
    sends_at_once: bool
    plan: Plan
    tables: Sequence[BufferTable]
    laps: tuple[Measured, ...]

    def waiting(self, schedule: Plan, laps: Iterable[Measured]) -> list[list[tuple[float, int]]]:
        """The changes over time of the bytes of results that wait for a slot of their receivers, if blocks run at
        ``laps``: see :func:`~weft.runtime.plan.buffers.waiting_bytes`. ``schedule`` has the plan's order."""
        run = {(lap.block, lap.micro_batch): (lap.start, lap.end) for lap in laps}
        names = {work: schedule.problem.blocks[schedule.vocabulary.known(work)[0]].name for work in schedule.times}
        return waiting_bytes(self.plan.program.ranks, self.tables, {
            work: run[name, work.micro_batch] for work, name in names.items()})


@dataclass(frozen=True)
class TimedSteps:
    """Timed steps. ``share``: of the time that blocks took on a CPU, the part in which their rank computed: the least
    of all ranks'."""

    timelines: tuple[Timeline, ...]
    share: float = 1.0

    @property
    def makespan(self) -> float:
        """The median of the steps, in seconds: the lower one of two."""
        spans = sorted(timeline.makespan for timeline in self.timelines)
        return spans[(len(spans) - 1) // 2]

    @property
    def noise(self) -> float:
        """The difference in seconds between the (upper) median and the shortest step: smaller differences are
        insignificant."""
        spans = sorted(timeline.makespan for timeline in self.timelines)
        return spans[len(spans) // 2] - spans[0]


class PlannedSteps:
    """Runs steps of ``plan`` with the stages of this rank in ``training``. All ranks create it and call each method
    together.

    Raises :class:`~weft.runtime.ranks.session.SessionError` for stages other than the plan's.
    """

    def __init__(self, plan: Plan, session: Session, training: Training) -> None:
        session.add_groups(plan.groups)
        self.plan, self.session, self.training = plan, session, training
        self.trainer = trainer = Trainer.of(plan, session, training, None)
        self.executor = Executor(trainer.gradients.plan, session, trainer.worker, reduce=trainer.gradients.start)
        self.steps = 0

    def step(self) -> list[Measured]:
        """Run one step; returns the measured blocks of this rank."""
        self.trainer.begin(self.steps)
        return self._run()

    def _run(self, together: bool = True) -> list[Measured]:
        self.steps += 1
        found = self.executor.run(together=together)
        if self.trainer.has_backward:
            self.trainer.gradients.finish()
        return found

    def timed(self, limit: float = math.inf) -> TimedSteps | None:
        """Run timed steps until the time of a step is known, or known to exceed ``limit`` seconds (rank 0's value), the
        time of a better plan. The result is on rank 0."""
        session, laps, spans, begun = self.session, list[list[Measured]](), list[float](), time.process_time()
        while not laps or not _is_enough(spans, limit):
            laps.append(found := self.step())
            took = max((lap.end for lap in found), default=0.0) - min((lap.start for lap in found), default=0.0)
            everywhere = session.everywhere((took, limit), "measuring the plan")
            limit = everywhere[0][1]
            spans.append(max(took for took, _ in everywhere))
        computed = time.process_time() - begun if session.device.type == "cpu" else math.inf
        share = computed / max(sum(lap.end - lap.start for step in laps for lap in step), 1e-9)
        ranks = session.exchange((laps, share), "gathering what was measured")
        session.watch.joined()  # planning follows, and may take longer than a wait
        unit = seconds_in_unit(self.plan) or 1.0
        return None if session.rank else TimedSteps(tuple(
            Timeline.of(self.plan, unit, [lap for own, _ in ranks for lap in own[i]]) for i in range(len(laps))),
            min(share for _, share in ranks))

    def memory(self) -> StepMemory:
        """The memory of one more step; the gradients exist before it."""
        executor, session = self.executor, self.session
        if not self.steps:
            self.trainer.gradients.make()
        self.trainer.begin(self.steps)
        executor.begin()  # not recorded: what the ranks meet with may be released by gloo's thread, which is not seen
        # A sum that is still under way when the profiler stops writes into memory that has been freed.
        with releases() as elsewhere:
            own, computed = memory_of(lambda: self._run(together=False), session.device, elsewhere)
        self.trainer.gradients.forget_unused()
        held = held_bytes(executor, self.trainer, self.training)
        peaks, slots, at_once, laps = zip(*session.exchange((
            held + computed.peak, sum(executor.table.slots), executor.transport.sends_at_once, own),
            "gathering what was measured"), strict=True)
        session.watch.joined()
        return StepMemory(peaks, slots, all(at_once), executor.plan, executor.tables, tuple(chain(*laps)))

    def close(self) -> None:
        """Release buffers and stages."""
        self.executor.close()
        self.trainer.worker.close()


def _is_enough(spans: Sequence[float], limit: float) -> bool:
    """Whether timed steps of ``spans`` seconds determine the time of a step, or that it exceeds ``limit``."""
    least, seconds = min(spans), sum(spans)
    if len(spans) >= MOST or least > min(limit, LONG):
        return True
    return len(spans) >= FEWEST and seconds >= (WORTH / 4 if max(spans) - least <= ALIKE * least else WORTH)


def held_bytes(executor: Executor, trainer: Trainer, training: Training) -> int:
    """Bytes of this rank's part before a step begins: weights, buffers, kept gradients, and room for messages, an
    optimizer's values where there is one."""
    found: list[Tensor] = [tensor for parcel in executor.slots.values() for tensor in parcel.values()]
    found += trainer.gradients.kept
    found += executor.transport.staging
    if training.masters is not None:
        found += [tensor for master in training.masters.parameters() for tensor in (master, master.grad)
                  if tensor is not None]
    for module in training.stages.values():
        found += [*module.parameters(), *module.buffers()]
        found += [p.grad for p in module.parameters() if p.grad is not None]
    states: Iterable[Mapping[str, Any]] = () if training.optimizer is None else training.optimizer.state.values()
    found += [value for state in states for value in state.values() if isinstance(value, Tensor)]
    return sum({part.data_ptr(): part.nbytes() for tensor in found for part in memories(tensor)}.values())
