"""A job of stages among others, as a plan of its own: a pipeline that trains or infers, a tensor-parallel group.

Its blocks are those of the plan with jobs, in the same order on every rank, at the same times. The micro-batches that a
lap has of it are one batch: the optimizer steps between laps, and nothing of the next lap begins before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from weft.runtime.plan.plan import Plan, plan_of
from weft.runtime.plan.program import BlockWork, ProgramError
from weft.runtime.share.job_plans import JobPlan
from weft.solver.problem import Device, Problem
from weft.solver.schedule import Operation, Schedule
from weft.solver.wide.block import WideBlock
from weft.solver.wide.rounds import Rounds

__all__ = ["stages_plan"]


def stages_plan(plan: Plan, rounds: Rounds, job: str, blocks: Sequence[WideBlock]) -> JobPlan:
    """The stages that ``blocks`` of ``job`` are, on the ranks that run any of them.

    Raises :class:`~weft.runtime.plan.program.ProgramError` for blocks that are no stages.
    """
    problem = _alone(plan, rounds, job, blocks)
    count = len(rounds.run.classes[job])
    operations = tuple(Operation(problem.index[block.name], number, *plan.times[BlockWork(block.name, number)])
                       for block in blocks for number in range(count))
    try:
        alone = plan_of(Schedule(problem, count, operations, 0.0))
    except ProgramError as error:
        raise ProgramError(f"job {job!r}: {error}") from None
    if alone.why_not_trained is not None:
        raise ProgramError(f"job {job!r}: {alone.why_not_trained}; jobs that share ranks run as stages on GPUs, or "
                           "data parallel: each block on all GPUs of the job, and sums on a lane of each")
    passes = {alone.vocabulary.work(number, m): (block.name, m)
              for number, block in enumerate(problem.blocks) for m in range(count)}
    durations: dict[str, float] = {}
    for block in blocks:
        assert not isinstance(block.duration, Mapping)
        durations[block.name] = block.duration
    names = {device.name: rank for rank, device in enumerate(_ranks(plan))}
    everything = frozenset(passes)
    return JobPlan(job, alone, tuple(names[device.name] for device in problem.devices), 1, passes, everything,
                   everything, (), 1, count, durations)


def _ranks(plan: Plan) -> list[Device]:
    return [plan.problem.devices[device] for device in plan.vocabulary.ranks.devices]


def _alone(plan: Plan, rounds: Rounds, job: str, blocks: Sequence[WideBlock]) -> Problem:
    """What the job runs, on the devices that it uses."""
    used = sorted({device for block in blocks for device in block.devices})
    place = {device: number for number, device in enumerate(used)}
    devices = plan.problem.devices
    for block in blocks:
        lane = next((devices[d] for d in block.devices if devices[d].lane_of is not None), None)
        if lane is not None:
            raise ProgramError(f"job {job!r}: block {block.name!r} is on {lane.name}, a lane of {lane.lane_of}, beside "
                               "a GPU: a block of a job that is trained computes on GPUs, or sums on lanes alone; use "
                               "--emulate")
    plain = [block.of_class(None) for block in blocks]
    links = tuple(replace(link, source=place[link.source], target=place[link.target]) for link in rounds.wide.links
                  if link.source in place and link.target in place)
    return Problem(job, tuple(devices[device] for device in used),
                   tuple(replace(block, devices=tuple(place[d] for d in block.devices)) for block in plain), links,
                   rounds.wide.time_unit, rounds.wide.memory_unit)
