"""A measured step under the planned one."""

from __future__ import annotations

from weft.figures import draw
from weft.runtime.plan.plan import Plan
from weft.runtime.replay.result import Replay
from weft.solver.schedule import Operation, Schedule

__all__ = ["draw_step"]


def draw_step(plan: Plan, replay: Replay, path: str) -> None:
    """Draw what ``replay`` measured, beside ``plan``, to ``path``."""
    operations = [Operation(block, work.micro_batch, *times) for work, times in plan.times.items()
                  if (block := plan.vocabulary.block(work)) is not None]
    schedule = Schedule(plan.problem, plan.micro_batches, tuple(operations), 0.0)
    draw(schedule, path, measured=replay.timeline)
