"""Draws a measured step below the planned one."""

from __future__ import annotations

from weft.figures import draw
from weft.runtime.plan.plan import Plan
from weft.runtime.replay.run import Replay


def draw_step(plan: Plan, replay: Replay, path: str, model: str) -> None:
    """Draw the measured step of ``replay`` below ``plan`` to ``path``. ``model``: name for the title."""
    ranks, count = len(plan.program.ranks), plan.micro_batches
    title = f"{model}, {count} micro-batch{'es' * (count != 1)} on {ranks} rank{'s' * (ranks != 1)}"
    draw(plan.schedule, path, measured=replay.timeline, title=title)
