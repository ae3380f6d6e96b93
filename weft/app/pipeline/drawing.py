"""A measured step under the planned one."""

from __future__ import annotations

from weft.app.pipeline.peaks import schedule_of
from weft.figures import draw
from weft.runtime.plan.plan import Plan
from weft.runtime.replay.result import Replay

__all__ = ["draw_step"]


def draw_step(plan: Plan, replay: Replay, path: str) -> None:
    """Draw what ``replay`` measured, beside ``plan``, to ``path``."""
    draw(schedule_of(plan), path, measured=replay.timeline)
