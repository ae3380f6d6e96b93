"""Schedules that a format cannot express are refused in one sentence."""

from __future__ import annotations

from weft.solver.pipeline import NotAPipeline, Pipeline
from weft.solver.schedule import Schedule


class ExportError(ValueError):
    """A schedule that a format cannot express; the message says what in it, and why."""


def require_one_kind(schedule: Schedule, tool: str) -> None:
    """Raise :class:`ExportError`, on behalf of ``tool``, for lanes, jobs, and micro-batches that differ."""
    problem, rounds = schedule.problem, schedule.rounds
    lane = next((device for device in problem.devices if device.lane_of is not None), None)
    if lane is not None:
        raise ExportError(f"{tool} cannot express {problem.name!r}: device {lane.name!r} is a lane of "
                          f"{lane.lane_of!r}, it has devices without lanes only")
    if rounds is not None and not rounds.wide.is_plain:
        what = (f"the jobs {' and '.join(map(repr, rounds.wide.jobs))}" if len(rounds.wide.jobs) > 1
                else "micro-batches of several classes")
        raise ExportError(f"{tool} cannot express {problem.name!r}: it has {what}, and all micro-batches there are "
                          "alike")


def pipeline_for(schedule: Schedule, tool: str) -> Pipeline:
    """The pipeline that ``schedule`` runs, every device with a stage. Raises :class:`ExportError` on behalf of ``tool``
    if there is none."""
    require_one_kind(schedule, tool)
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
