"""Which of the two ways each job of a plan runs in."""

from __future__ import annotations

from weft.runtime.plan.plan import Plan
from weft.runtime.plan.program import ProgramError
from weft.runtime.share.data_parallel_plan import data_parallel_plan
from weft.runtime.share.job_plans import JobPlan
from weft.runtime.share.stages_plan import stages_plan

__all__ = ["job_plans"]


def job_plans(plan: Plan) -> tuple[JobPlan, ...]:
    """The jobs of ``plan``, each as a training or inference of its own.

    Raises :class:`~weft.runtime.plan.program.ProgramError` for a plan without several jobs, and for a job that can be
    emulated among others but not run, with the block that is in the way.
    """
    rounds = plan.rounds
    if rounds is None or len(rounds.wide.jobs) < 2:
        raise ProgramError(f"the plan of {plan.problem.name!r} has no jobs that share its ranks: it is one training")
    devices = plan.problem.devices
    found = []
    for job in rounds.wide.jobs:
        own = [block for block in rounds.wide.blocks if block.job == job]
        on_lanes = any(all(devices[d].lane_of is not None for d in block.devices) for block in own)
        found.append((data_parallel_plan if on_lanes else stages_plan)(plan, rounds, job, own))
    return tuple(found)
