"""A plan run for a few steps before anything is trained: what its blocks, its messages and its memory really come to.

All ranks run their instructions through the same executor as later, with the same transport, buffers and neighbours.
Nothing is updated, no loss is looked at; whoever calls it keeps buffers, gradients and random state. After one step
that makes gradients and chooses kernels come some that are timed, and one whose memory is watched (which takes time, so
that it is not timed).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from weft.runtime.execute.executor import Executor
from weft.runtime.interface.training import Training
from weft.runtime.measure.measure import memory_of
from weft.runtime.plan.buffers import waiting_bytes
from weft.runtime.plan.plan import Plan
from weft.runtime.plan.timeline import Measured, Timeline
from weft.runtime.ranks.session import Session
from weft.runtime.replay.options import seconds_in_unit
from weft.runtime.replay.run import Trainer

__all__ = ["Calibration", "calibrate", "held_bytes"]

#: Seconds that the timed steps may take together, and how many there are at least and at most; of a step that takes
#: longer than :data:`LONG` seconds, one is timed.
WORTH, FEWEST, MOST, LONG = 1.0, 2, 6, 5.0


@dataclass(frozen=True)
class Calibration:
    """The timed steps, and the most bytes that each rank held: weights, gradients, buffers, messages and what blocks
    keep, without an optimizer's values. ``slots``: the bytes of room that each rank has for what it receives.
    ``sends_at_once``: whether what a rank sends is written to its receiver as soon as that has room for it;
    ``waiting``: the bytes of results that wait for such room at each rank, by the plan's times."""

    timelines: tuple[Timeline, ...]
    peaks: tuple[int, ...]
    slots: tuple[int, ...]
    sends_at_once: bool = False
    waiting: tuple[int, ...] = ()

    @property
    def makespan(self) -> float:
        """The median of the steps, in seconds: the lower one of two."""
        spans = sorted(timeline.makespan for timeline in self.timelines)
        return spans[(len(spans) - 1) // 2]


def calibrate(plan: Plan, session: Session, training: Training) -> Calibration | None:
    """Run ``plan`` with the stages of this rank in ``training``; what was found is on rank 0. All ranks call it
    together.

    Raises :class:`~weft.runtime.ranks.session.SessionError` for stages that are not those of the plan.
    """
    session.add_groups(plan.groups)
    trainer = Trainer.of(plan, session, training, None)
    executor = Executor(trainer.gradients.plan, session, trainer.worker, reduce=trainer.gradients.start)

    def step(number: int) -> list[Measured]:
        trainer.begin(number)
        found = executor.run()
        if trainer.has_backward:
            trainer.gradients.finish()
        return found

    waiting = waiting_bytes(executor.plan.program.ranks, executor.tables, executor.plan.times)
    slots, at_once = sum(executor.table.slots), executor.transport.sends_at_once
    try:
        first = step(0)
        took = max((lap.end for lap in first), default=0.0) - min((lap.start for lap in first), default=0.0)
        longest = max(session.everywhere(took, "measuring the plan"))
        count = 1 if longest > LONG else max(FEWEST, min(MOST, int(WORTH / max(longest, 1e-9))))
        laps = [step(1 + number) for number in range(count)]
        trainer.begin(count + 1)
        held = held_bytes(executor, trainer, training)
        _, computed = memory_of(executor.run, session.device)
        if trainer.has_backward:
            trainer.gradients.finish()
    finally:
        executor.close()
        trainer.worker.close()
    everywhere = session.exchange((laps, held + computed.peak, slots, at_once), "gathering what was measured")
    session.watch.joined()  # what follows is planning again, and may take longer than a wait
    if session.rank:
        return None
    unit = seconds_in_unit(plan) or 1.0
    return Calibration(tuple(Timeline.of(plan, unit, [lap for own, *_ in everywhere for lap in own[number]])
                             for number in range(count)),
                       tuple(peak for _, peak, _, _ in everywhere), tuple(size for _, _, size, _ in everywhere),
                       all(at_once for *_, at_once in everywhere), waiting)


def held_bytes(executor: Executor, trainer: Trainer, training: Training) -> int:
    """Bytes of this rank's part that are there before a step begins: weights, buffers, gradients that are kept, and
    room for messages."""
    found: list[Tensor] = [tensor for parcel in executor.slots.values() for tensor in parcel.values()]
    found += trainer.gradients.kept
    found += executor.transport.staging
    if training.masters is not None:
        found += [tensor for master in training.masters.parameters() for tensor in (master, master.grad)
                  if tensor is not None]
    modules: Any = training.stages
    for stage in modules:
        found += [*modules[stage].parameters(), *modules[stage].buffers()]
        found += [p.grad for p in modules[stage].parameters() if p.grad is not None]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in found}.values())
