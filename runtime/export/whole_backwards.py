"""A pipeline with split backwards, for tools that run whole backwards only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.solver.pipeline import Stage
from weft.solver.problem import Block, BlockKind, Number, Problem
from weft.solver.schedule import Schedule
from weft.solver.timing import time_orders


def with_whole_backwards(schedule: Schedule, stages: Sequence[Stage]) -> Schedule:
    """``schedule``, of the pipeline of ``stages``, in its own order with each backward whole, at the place of its input
    gradient: the same schedule if none is split. ``makespan_bound`` is 0 if any is."""
    problem = whole_backwards(schedule.problem, stages)
    if problem is schedule.problem:
        return schedule
    new = {old: problem.index[name] for old, name in _names(schedule.problem, stages).items()}
    orders = [[(new[block], m) for block, m in row if block in new] for row in schedule.orders]
    return replace(schedule, problem=problem, operations=time_orders(problem, schedule.micro_batches, orders),
                   makespan_bound=0.0, period=None, period_bound=None, repetend=None)


def whole_backwards(problem: Problem, stages: Sequence[Stage]) -> Problem:
    """``problem``, the pipeline of ``stages``, with input and weight gradient of each as one block, which takes as much
    time and memory as both back to back, and whose dependents wait for its end."""
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
    """The joint workspace of both, one after the other, beside their memory."""
    between, after = first.memory_on(device), first.memory_on(device) + last.memory_on(device)
    needs = max(max(between, 0) + first.workspace_on(device),
                between + max(last.memory_on(device), 0) + last.workspace_on(device))
    return max(0, needs - max(after, 0))
