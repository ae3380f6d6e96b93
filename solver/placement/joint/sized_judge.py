"""From first principles: is a schedule one of these operators, in these stages, in micro-batches of these sizes?

It shares no code with the search: durations are counted anew, operator by operator and tensor by tensor, and waits
sample by sample. Whether the schedule keeps its own block problem is for :mod:`weft.solver.judge.validate`, which is
called here too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.solver.judge.validate import violations
from weft.solver.placement.joint.sized import SizedProblem
from weft.solver.placement.judge import breaches_of_division
from weft.solver.problem import Block, BlockKind, Problem
from weft.solver.schedule import Schedule

#: The share of sums by which they may differ.
_ROUNDING = 1e-9


class InvalidStep(AssertionError):
    """A step that breaks a rule has come out of the search: a defect of weft's, never of the input."""


def faults(sized: SizedProblem, parts: Sequence[tuple[int, Sequence[int]]], devices: Sequence[int],
           sizes: Sequence[int], schedule: Schedule) -> list[str]:
    """Every rule that is broken, a sentence each; empty for a step that may be used. ``parts``: per stage its kind of
    device and its operators; ``devices``: on how many it is; ``sizes``: samples of its micro-batches."""
    found = [*breaches_of_division(sized.any, parts, devices), *_of_sizes(sized, sizes, schedule)]
    if found:
        return found
    blocks = _blocks_of(schedule.problem, len(parts))
    for stage in range(len(parts)):
        found += _of_stage(sized, parts, devices, sizes, stage, blocks[stage], schedule.problem)
    return found or [*_of_samples(sized, parts, sizes, blocks, schedule.problem), *map(str, violations(schedule))]


def _of_sizes(sized: SizedProblem, sizes: Sequence[int], schedule: Schedule) -> Iterator[str]:
    for stage, size in enumerate(sizes):
        if size not in sized.by_size:
            yield f"stage {stage} runs micro-batches of {size} samples, for which there are no costs"
    if max(sizes) * schedule.micro_batches != sized.mini_batch:
        yield (f"{schedule.micro_batches} rounds of {max(sizes)} samples are not the mini-batch of "
               f"{sized.mini_batch}")


def _blocks_of(problem: Problem, stages: int) -> list[dict[BlockKind, list[Block]]]:
    """Per stage its blocks of a kind, in the order of their samples. Names are ``F3`` or ``F3.0``, ``F3.1`` ..."""
    found: list[dict[BlockKind, list[Block]]] = [{} for _ in range(stages)]
    for block in sorted(problem.blocks, key=lambda block: int(block.name.partition(".")[2] or 0)):
        found[int(block.name[1:].partition(".")[0])].setdefault(block.kind, []).append(block)
    return found


def _of_stage(sized: SizedProblem, parts: Sequence[tuple[int, Sequence[int]]], devices: Sequence[int],
              sizes: Sequence[int], stage: int, blocks: dict[BlockKind, list[Block]], problem: Problem
              ) -> Iterator[str]:
    """Number, durations and memory of a stage's blocks."""
    size, (kind, nodes), shared = sizes[stage], parts[stage], devices[stage]
    costs = sized.by_size[size]
    forward = sum(costs.nodes[node].forward * _time(sized, size, node, kind, shared) for node in nodes)
    backward = sum((1 - costs.nodes[node].forward) * _time(sized, size, node, kind, shared) for node in nodes)
    trains, kept = any(costs.nodes[node].forward < 1 for node in nodes), 0.0
    half = _transfers(sized, parts, sizes, stage) / shared / (2 if trains else 1)
    wanted = {BlockKind.FORWARD: forward + half}
    if trains:
        added_up = sum(degree.all_reduce * costs.nodes[node].gradient for degree in costs.degrees
                       if degree.devices == shared for node in nodes) * size / sized.mini_batch
        wanted[BlockKind.BACKWARD] = backward + half + added_up
        kept = sum(costs.nodes[node].per_micro_batch for node in nodes) / shared
    if set(blocks) != set(wanted):
        yield f"stage {stage} has blocks of the kinds {', '.join(sorted(blocks))}"
        return
    for pass_, seconds in wanted.items():
        if len(blocks[pass_]) * size != max(sizes):
            yield f"stage {stage} runs {len(blocks[pass_])} {pass_} blocks of {size} samples a round"
        for block in blocks[pass_]:
            change = kept if pass_ == BlockKind.FORWARD else -kept
            if abs(block.duration - seconds) > _ROUNDING * seconds:
                yield f"block {block.name!r} takes {block.duration:g}, its operators and transfers {seconds:g}"
            if len(block.devices) != shared or any(abs(held - change) > _ROUNDING * kept for held in block.memory):
                yield f"block {block.name!r} changes memory by {block.memory[0]:g} on {len(block.devices)} devices"
    memory, resident = costs.kinds[kind].memory, sum(costs.nodes[node].resident for node in nodes)
    for device in {device for of in blocks.values() for block in of for device in block.devices}:
        room = problem.devices[device].memory
        if memory is not None and (room is None or room + resident > memory * (1 + _ROUNDING)):
            yield f"device {problem.devices[device].name} of stage {stage} has more room than its memory"


def _time(sized: SizedProblem, size: int, node: int, kind: int, shared: int) -> float:
    problem = sized.by_size[size]
    if shared == 1:
        return problem.nodes[node].times[kind] or 0.0
    return next(degree.times[node][kind] or 0.0 for degree in problem.degrees if degree.devices == shared)


def _transfers(sized: SizedProblem, parts: Sequence[tuple[int, Sequence[int]]], sizes: Sequence[int], stage: int
               ) -> float:
    """The time of a micro-batch's transfers: a tensor's messages contain as many samples as the smallest micro-batch of
    all stages that it touches."""
    stage_of = {node: s for s, (_, nodes) in enumerate(parts) for node in nodes}
    total = 0.0
    for i, tensor in enumerate(sized.any.tensors):
        touched = {stage_of[node] for node in (tensor.producer, *tensor.consumers)}
        if stage in touched and len(touched) > 1:
            part = min(sizes[other] for other in touched)
            problem = sized.by_size[part]
            total += sizes[stage] / part * problem.tensors[i].time * problem.kinds[parts[stage][0]].transfer_factor
    return total


def _of_samples(sized: SizedProblem, parts: Sequence[tuple[int, Sequence[int]]], sizes: Sequence[int],
                blocks: Sequence[dict[BlockKind, list[Block]]], problem: Problem) -> Iterator[str]:
    """Whether every sample comes to each stage after its predecessors, and goes back after its successors."""
    before = [0] * len(problem.blocks)
    for number in problem.topological_order:
        for item in problem.blocks[number].after:
            if not item.distance:
                producer = problem.index[item.block]
                before[number] |= before[producer] | 1 << producer

    def of_sample(stage: int, kind: BlockKind, sample: int) -> Block | None:
        held = blocks[stage].get(kind)
        return None if held is None else held[sample // sizes[stage]]

    stage_of = {node: s for s, (_, nodes) in enumerate(parts) for node in nodes}
    pairs = {(stage_of[a], stage_of[b]) for a, b in sized.any.order if stage_of[a] != stage_of[b]}
    ways = [(BlockKind.FORWARD, a, BlockKind.FORWARD, b) for a, b in pairs]
    ways += [(BlockKind.BACKWARD, b, BlockKind.BACKWARD, a) for a, b in pairs]
    ways += [(BlockKind.FORWARD, stage, BlockKind.BACKWARD, stage) for stage in range(len(parts))]
    for kind, first, other, second in ways:
        for sample in range(max(sizes)):
            earlier, later = of_sample(first, kind, sample), of_sample(second, other, sample)
            if earlier is not None and later is not None and not (
                    before[problem.index[later.name]] >> problem.index[earlier.name] & 1):
                yield f"block {later.name!r} does not wait for {earlier.name!r}, which has its sample {sample}"
                break
