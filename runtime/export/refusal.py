"""What a format cannot say is refused in one sentence."""

from __future__ import annotations

from weft.solver.pipeline import NotAPipeline, Pipeline
from weft.solver.schedule import Schedule

__all__ = ["ExportError", "pipeline_for"]


class ExportError(ValueError):
    """A schedule that a format cannot express; the message says what in it, and why."""


def pipeline_for(schedule: Schedule, tool: str) -> Pipeline:
    """The pipeline that ``schedule`` runs, every device with a stage. Raises :class:`ExportError` on behalf of ``tool``
    if there is none."""
    problem = schedule.problem
    try:
        pipeline = Pipeline.of(problem)
    except NotAPipeline as reason:
        raise ExportError(f"{tool} cannot express {problem.name!r}: {reason}") from None
    for device, stages in zip(problem.devices, pipeline.chunks, strict=True):
        if not stages:
            raise ExportError(f"{tool} cannot express {problem.name!r}: device {device.name!r} runs no stage, every "
                              "rank needs one")
    return pipeline
