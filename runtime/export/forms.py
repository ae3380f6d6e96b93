"""Schedules in the forms that other tools need: groups of GPUs as one rank, times as integer steps, full backwards.

Features that a format cannot express are refused in one sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.solver.pipeline import NotAPipeline, Pipeline, Stage
from weft.solver.problem import Block, BlockKind, Device, Number, Problem
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.solver.timing import time_orders


class ExportError(ValueError):
    """A format cannot express the schedule; the message has the feature and the reason."""


def require_one_kind(schedule: Schedule, tool: str) -> None:
    """Raise :class:`ExportError`, on behalf of ``tool``, for lanes, jobs, and micro-batches that differ."""
    problem, rounds = schedule.problem, schedule.rounds
    lane = next((device for device in problem.devices if device.lane_of is not None), None)
    if lane is not None:
        raise ExportError(f"{tool} cannot express {problem.name!r}: device {lane.name!r} is a lane of "
                          f"{lane.lane_of!r}, it has devices without lanes only")
    if rounds is not None and not rounds.origin.is_plain:
        what = (f"the jobs {' and '.join(map(repr, rounds.origin.jobs))}" if len(rounds.origin.jobs) > 1
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


def as_ranks(schedule: Schedule, tool: str, *, unequal: bool = False) -> tuple[Schedule, int]:
    """``schedule`` with GPUs that run the same blocks as one device, and the number of GPUs of each device (the least
    one, if they may be ``unequal``).

    Raises :class:`~weft.runtime.export.forms.ExportError`, on behalf of ``tool``, for groups of unequal sizes and for
    blocks on several groups: tools have one degree of tensor parallelism for all stages.
    """
    require_one_kind(schedule, tool)
    problem = schedule.problem
    groups: dict[tuple[int, ...], list[int]] = {}
    for device, blocks in enumerate(problem.blocks_on):
        groups.setdefault(blocks, []).append(device)
    if len(groups) == len(problem.devices):
        return schedule, 1
    members = [*groups.values()]
    rank_of = {device: rank for rank, group in enumerate(members) for device in group}
    for block in problem.blocks:
        if len({rank_of[device] for device in block.devices}) > 1:
            raise ExportError(f"{tool} cannot express {problem.name!r}: block {block.name!r} runs on "
                              f"{len(block.devices)} devices of which some run other blocks alone, and there every "
                              "stage is on a group of GPUs of its own")
    sizes = sorted({len(group) for group in members})
    if len(sizes) > 1 and not unequal:
        raise ExportError(f"{tool} cannot express {problem.name!r}: its stages are on groups of "
                          f"{' and '.join(map(str, sizes))} GPUs, and there all are on equally many (one degree of "
                          "tensor parallelism)")
    devices = tuple(Device("-".join(dict.fromkeys((problem.devices[group[0]].name, problem.devices[group[-1]].name))),
                           problem.devices[group[0]].memory, problem.devices[group[0]].static) for group in members)

    def on_rank(block: Block) -> Block:
        first = min(block.devices)
        return replace(block, devices=(rank_of[first],), memory=(block.memory_on(first),),
                       workspace=(block.workspace_on(first),))

    by_gpu = {key: schedule.solver[key] for key in ("static_memory", "gpu_memory", "gradients_freed")
              if key in schedule.solver}
    return replace(schedule, problem=replace(problem, devices=devices, blocks=tuple(map(on_rank, problem.blocks)))
                   ).with_solver(**{key: [value[group[0]] for group in members]
                                    for key, value in by_gpu.items()}), sizes[0]


#: The most steps: tools list every step.
MAX_STEPS = 1_000_000


def ranked_steps(schedule: Schedule, tool: str) -> list[tuple[int, int]]:
    """The first step and the number of steps of each operation; a step ends whenever an operation starts or ends.

    Overlaps and orders are preserved; durations are not. Raises :class:`~weft.runtime.export.forms.ExportError` for
    operations whose start and end are equal at this precision.
    """
    tolerance = schedule.makespan * RELATIVE_TOLERANCE
    step_of: dict[float, int] = {}
    step, latest = -1, float("-inf")
    for time in sorted({time for operation in schedule.operations for time in (operation.start, operation.end)}):
        if time > latest + tolerance:
            step, latest = step + 1, time
        step_of[time] = step
    steps = []
    for operation in schedule.operations:
        span = step_of[operation.end] - step_of[operation.start]
        if span < 1:
            raise ExportError(f"{tool} cannot express {schedule.problem.name!r}: block "
                              f"{schedule.problem.blocks[operation.block].name!r} is too short beside the whole "
                              "schedule to be a step of its own")
        steps.append((step_of[operation.start], span))
    return steps


def with_whole_backwards(schedule: Schedule, stages: Sequence[Stage]) -> Schedule:
    """``schedule``, of the pipeline of ``stages``, with each split backward replaced by a full one at the place of its
    input gradient, in the same order; unchanged if none is split. ``makespan_bound`` is 0 if any is."""
    problem = whole_backwards(schedule.problem, stages)
    if problem is schedule.problem:
        return schedule
    new = {old: problem.index[name] for old, name in _names(schedule.problem, stages).items()}
    orders = [[(new[block], m) for block, m in row if block in new] for row in schedule.orders]
    return replace(schedule, problem=problem, operations=time_orders(problem, schedule.micro_batches, orders),
                   makespan_bound=0.0, period=None, period_bound=None, repetend=None)


def whole_backwards(problem: Problem, stages: Sequence[Stage]) -> Problem:
    """``problem``, the pipeline of ``stages``, with input and weight gradient of each stage as one block, which takes
    the time and memory of both in sequence; its dependents wait for its end."""
    split = [stage for stage in stages if stage.weight_grad is not None]
    if not split:
        return problem
    names = _names(problem, stages)
    renamed = {problem.blocks[block].name: name for block, name in names.items()}
    renamed |= {problem.blocks[stage.weight_grad].name: names[_first(stage)]
                for stage in split if stage.weight_grad is not None}
    whole = {_first(stage): _joined(problem, stage, names[_first(stage)]) for stage in split}
    blocks = []
    for number in names:
        found = whole.get(number, problem.blocks[number])
        waits = dict.fromkeys(replace(item, block=renamed[item.block]) for item in found.after)
        blocks.append(replace(found, after=tuple(item for item in waits if item.block != found.name or item.distance)))
    return replace(problem, blocks=tuple(blocks))


def _first(stage: Stage) -> int:
    """The block that the whole backward replaces: the input gradient, or if there is none the weight gradient."""
    found = stage.weight_grad if stage.input_grad is None else stage.input_grad
    assert found is not None
    return found


def _names(problem: Problem, stages: Sequence[Stage]) -> dict[int, str]:
    """Names of the blocks that remain, by their old number."""
    names = {number: block.name for number, block in enumerate(problem.blocks)}
    taken = set(names.values())
    for s, stage in enumerate(stages):
        if stage.weight_grad is None:
            continue
        name = f"B{s}"
        while name in taken:
            name += "'"
        if stage.input_grad is not None:
            del names[stage.weight_grad]
        names[_first(stage)] = name
        taken.add(name)
    return names


def _joined(problem: Problem, stage: Stage, name: str) -> Block:
    assert stage.weight_grad is not None
    last = problem.blocks[stage.weight_grad]
    if stage.input_grad is None:
        return replace(last, name=name, kind=BlockKind.BACKWARD)
    first = problem.blocks[stage.input_grad]
    return Block(name, BlockKind.BACKWARD, first.devices, first.duration + last.duration,
                 tuple(first.memory_on(device) + last.memory_on(device) for device in first.devices),
                 tuple(_workspace(first, last, device) for device in first.devices), (*first.after, *last.after))


def _workspace(first: Block, last: Block, device: int) -> Number:
    """The workspace of both blocks in sequence, in addition to their memory."""
    between, after = first.memory_on(device), first.memory_on(device) + last.memory_on(device)
    needs = max(max(between, 0) + first.workspace_on(device),
                between + max(last.memory_on(device), 0) + last.workspace_on(device))
    return max(0, needs - max(after, 0))
