"""A measured step under the planned one."""

from __future__ import annotations

from weft.figures import draw
from weft.runtime.plan.plan import Plan
from weft.runtime.replay.run import Replay


def draw_step(plan: Plan, replay: Replay, path: str, model: str) -> None:
    """Draw what ``replay`` measured, beside ``plan``, to ``path``; ``model`` is what the picture is of."""
    ranks, count = len(plan.program.ranks), plan.micro_batches
    title = f"{model}, {count} micro-batch{'es' * (count != 1)} on {ranks} rank{'s' * (ranks != 1)}"
    draw(plan.schedule, path, measured=replay.timeline, title=title)
