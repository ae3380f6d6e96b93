"""A measured step under the planned one."""

from __future__ import annotations

from weft.app.pipeline.run.peaks import schedule_of
from weft.figures import draw
from weft.runtime.plan.plan import Plan
from weft.runtime.replay.result import Replay

__all__ = ["draw_step"]


def draw_step(plan: Plan, replay: Replay, path: str, model: str) -> None:
    """Draw what ``replay`` measured, beside ``plan``, to ``path``; ``model`` is what the picture is of."""
    ranks, count = len(plan.program.ranks), plan.micro_batches
    title = f"{model}, {count} micro-batch{'es' * (count != 1)} on {ranks} rank{'s' * (ranks != 1)}"
    draw(schedule_of(plan), path, measured=replay.timeline, title=title)
