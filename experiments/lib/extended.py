"""Generated problems with choices, lanes, jobs and classes, alone and two at once: plain ones, widened.

A plain problem of :mod:`experiments.lib.generated` (at most 4 devices, so that each is searched in seconds) is changed:
*choices*, stages may keep their activations or recompute them; *lanes*, transfers are blocks on a network engine of the
GPU that sends; *classes*, micro-batches are short or long; *jobs*, another pipeline runs on the same GPUs the other way
round, with as many or twice as many micro-batches.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, replace

from experiments.lib.generated import Instance, problem, suite
from weft.solver.problem import Block, BlockKind, Dependency, Device, Number, Problem, changed, per_class
from weft.solver.problem.rounds import Run

EXTENSIONS = ("choices", "lanes", "classes", "jobs", *map("+".join, itertools.combinations(
    ("choices", "lanes", "classes", "jobs"), 2)))
#: Of a stage's activations what stays when it recomputes, and how much longer long micro-batches take.
_STAYS, _LONGER = 0.3, 1.7
_MOST_DEVICES, _MOST_MICRO_BATCHES, _MOST_CHOICES = 4, 8, 4


@dataclass(frozen=True)
class Extended:
    """A plain instance and what is added to it."""

    plain: Instance
    extension: str

    @property
    def family(self) -> dict[str, str]:
        """What the results are grouped by."""
        return {**self.plain.family, "extension": self.extension}


def extended(count: int, seed: int) -> list[Extended]:
    """``count`` instances through the extensions; the plain ones are those of another seed than the suite's that have
    few devices and micro-batches."""
    small = (drawn for drawn in suite(40 * count, seed + 1)
             if len(problem(drawn)[0].devices) <= _MOST_DEVICES and problem(drawn)[1] <= _MOST_MICRO_BATCHES)
    return [Extended(drawn, EXTENSIONS[i % len(EXTENSIONS)]) for i, drawn in zip(range(count), small, strict=False)]


def widened(drawn: Extended) -> tuple[Problem, Run]:
    """The problem and its run."""
    plain, micro_batches = problem(drawn.plain)
    draw = random.Random(drawn.plain.seed ^ 0x5EED)
    parts = drawn.extension.split("+")
    if "lanes" in parts:
        plain = _on_lanes(plain, draw)
    wide = replace(plain, name=f"{plain.name}, {drawn.extension}", model=None)
    if "choices" in parts:
        wide = _with_choices(wide, draw)
    if "classes" in parts:
        wide = _with_classes(wide)
    if "jobs" in parts:
        wide = _with_another_job(wide)
    classes = [draw.choice(("short", "long")) for _ in range(micro_batches)]
    counted: int | list[str] = classes if "classes" in parts and wide.classes else micro_batches
    if "jobs" not in parts:
        return wide, Run.of(wide, counted)
    other: int | list[str] = counted
    if draw.random() < 0.3 and not isinstance(counted, list):
        counted, other = max(1, micro_batches // 2), 2 * max(1, micro_batches // 2)
    return wide, Run.of(wide, {"one": counted, "two": other})


def _on_lanes(plain: Problem, draw: random.Random) -> Problem:
    """Each wait of a block on another GPU has a block on the network lane of the GPU that sends in between."""
    lanes = {d: len(plain.devices) + d for d in range(len(plain.devices))}
    devices = (*plain.devices, *(Device(f"{device.name}-net", lane_of=device.name) for device in plain.devices))
    blocks: list[Block] = []
    for block in plain.blocks:
        waits = []
        for wait in block.after:
            source = plain.blocks[plain.index[wait.block]]
            if len(source.devices) > 1 or len(block.devices) > 1 or source.devices == block.devices:
                waits.append(replace(wait, link=None))
                continue
            name = f"{wait.block}>{block.name}"
            blocks.append(Block(name, BlockKind.OTHER, (lanes[source.devices[0]],), wait.lag or draw.randint(10, 60),
                                after=(Dependency(wait.block, distance=wait.distance),)))
            waits.append(Dependency(name))
        blocks.append(replace(block, after=tuple(waits)))
    return Problem(plain.name, devices, tuple(blocks), (), plain.time_unit, plain.memory_unit)


def _with_choices(wide: Problem, draw: random.Random) -> Problem:
    """Up to :data:`_MOST_CHOICES` forwards keep what they make, or recompute it just before it is used."""
    takers = [block for block in wide.blocks if block.kind == BlockKind.FORWARD and len(block.devices) == 1
              and block.memory[0] > 0]
    chosen = draw.sample(takers, min(_MOST_CHOICES, len(takers)))
    freed = {block.name: _freed(block) for block in chosen}
    blocks: list[Block] = []
    for block in wide.blocks:
        if block.name in freed:
            less = _changed(block, -freed[block.name])
            blocks += [replace(block, when={block.name: "keep"}), replace(less, when={block.name: "recompute"})]
            blocks.append(Block(f"R{block.name}", BlockKind.RECOMPUTE, block.devices, block.duration, (0,),
                                after=(Dependency(block.name),), when={block.name: "recompute"}))
            continue
        forward = next((name for name in freed if _partner(block, name)), None)
        if forward is None:
            blocks.append(block)
            continue
        waits = (*block.after, Dependency(f"R{forward}", when={forward: "recompute"}))
        space = (freed[forward],)  # what is made anew lives while the gradient is computed
        blocks += [replace(block, when={forward: "keep"}),
                   replace(_changed(block, freed[forward]), workspace=space, after=waits, when={forward: "recompute"})]
    return replace(wide, blocks=tuple(blocks), choices={name: ("keep", "recompute") for name in freed})


def _freed(block: Block) -> int:
    return int((1 - _STAYS) * block.memory[0])


def _changed(block: Block, amount: Number) -> Block:
    return replace(block, memory=(block.memory[0] + amount,))


def _partner(block: Block, forward: str) -> bool:
    """Whether ``block`` gives back the last of what the forward of that name took."""
    return block.name[1:] == forward[1:] and block.kind in (BlockKind.BACKWARD, BlockKind.WEIGHT_GRAD)


def _with_classes(wide: Problem) -> Problem:
    """Forwards and gradients take so much longer for long micro-batches; what they hold is the same."""
    return replace(wide, blocks=tuple(
        block if block.kind == BlockKind.OTHER else replace(block, **per_class(
            duration={"short": block.duration, "long": round(_LONGER * block.duration)})) for block in wide.blocks))


def _with_another_job(wide: Problem) -> Problem:
    """The same pipeline once more, on the GPUs in reverse order, at half its durations and memory of its own."""
    owners = [d for d, device in enumerate(wide.devices) if device.lane_of is None]
    lanes = {device.lane_of: d for d, device in enumerate(wide.devices) if device.lane_of is not None}
    turned = {d: owners[-1 - i] for i, d in enumerate(owners)}
    for d, device in enumerate(wide.devices):
        if device.lane_of is not None:
            owner = next(i for i in owners if wide.devices[i].name == device.lane_of)
            turned[d] = lanes[wide.devices[turned[owner]].name]

    def half(duration: Number) -> Number:
        return max(1, round(duration / 2))

    one = [replace(block, job="one") for block in wide.blocks]
    two = [replace(block, name=f"{block.name}'", job="two", devices=tuple(turned[d] for d in block.devices),
                   **changed(block, duration=half),
                   after=tuple(replace(wait, block=f"{wait.block}'", link=None) for wait in block.after))
           for block in wide.blocks]
    devices = tuple(device if device.memory is None else replace(device, memory=2 * device.memory)
                    for device in wide.devices)
    return replace(wide, devices=devices, blocks=(*one, *two))
