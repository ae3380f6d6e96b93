"""A plan that the user has given, in one of the ways there are."""

from __future__ import annotations

import os

from weft.app.lib.judged import judged
from weft.app.pipeline.lib.options import PipelineOptions
from weft.runtime.captured.captured import CaptureError
from weft.runtime.plan.plan import Plan, load_plan, plan_of
from weft.solver.baselines import BASELINES
from weft.solver.io.schedule_files import load_schedule
from weft.solver.schedule import Schedule

__all__ = ["given_plan"]


def given_plan(options: PipelineOptions, ranks: int) -> Plan | None:
    """The plan of ``plan`` or ``schedule``, held against the ranks; ``None`` where one is to be found.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for one of other ranks, micro-batches or blocks.
    """
    schedule, plan, micro_batches = options.schedule, options.plan, options.micro_batches
    if plan is not None:
        found = plan if isinstance(plan, Plan) else load_plan(plan)
    elif schedule is None or (isinstance(schedule, str) and schedule in BASELINES):
        return None
    else:
        if isinstance(schedule, str) and not os.path.exists(schedule):
            raise CaptureError(f"schedule is {schedule!r}, it must be a schedule, its file, or one of "
                               f"{', '.join(BASELINES)}")
        found = plan_of(judged(schedule if isinstance(schedule, Schedule) else load_schedule(schedule), in_turn=False))
    if len(found.program.ranks) != ranks or found.micro_batches != micro_batches:
        raise CaptureError(f"the plan is for {len(found.program.ranks)} ranks and {found.micro_batches} micro-batches, "
                           f"but there are {ranks} ranks and micro_batches is {micro_batches}: start as many, or plan "
                           "for these")
    if found.stage_ranks is None:
        raise CaptureError("the plan's blocks are no stages on one rank each, which is what a captured model is cut "
                           "into: plan for stages in a row")
    return found
