"""Problems that several test files build, and a model spec."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from weft.solver import BASELINES, NotApplicable, Schedule, baseline, time_orders, validate
from weft.solver.period.periodic import Periodic, repeat
from weft.solver.problem import Block, BlockKind, Dependency, Device, Number, Problem

#: Seven layers on two GPUs with room for every placement.
TINY_SPEC = """
name: tiny
model:
  layers:
    - {name: embed, forward: 1 ms, input_grad: 0 ms, weight_grad: 2 ms, activation_memory: 10 MiB, output: 1 MiB,
       weights: 5 MiB}
    - {name: block, forward: 2 ms, input_grad: 2 ms, weight_grad: 2 ms, activation_memory: 20 MiB, output: 1 MiB,
       weights: 10 MiB, repeat: 6}
cluster: {gpus: 2, memory: 2 GiB, bandwidth: 30 GB/s, latency: 10 us}
training: {micro_batches: 4, micro_batch_size: 1}
"""


def together_spec(shapes: str) -> str:
    """A GPT whose vocabulary is large enough for ``shapes`` on four GPUs that compute layers together."""
    return f"""
name: together
model: {{family: gpt, layers: 4, hidden: 512, heads: 8, vocabulary: 65536, sequence: 512}}
costs: roofline
cluster: {{gpus: 4, memory: 4 GiB, device: v100, bandwidth: 150 GB/s}}
training: {{micro_batches: 4}}
placement: {{shapes: [{shapes}], backward: [full]}}
"""


def chain(p: int) -> list[int]:
    """The device of each stage: one stage a device."""
    return list(range(p))


def loop(p: int, chunks: int = 2) -> list[int]:
    """The device of each stage: ``chunks`` a device, round and round."""
    return list(range(p)) * chunks


def v(p: int) -> list[int]:
    """The device of each stage: down the devices and back."""
    return [*range(p), *reversed(range(p))]


def pipeline(devices: Sequence[int], *, forward: Number = 1, backward: Number | None = 2,
             split: tuple[Number, Number] | None = None, activation: Number = 1, memory: Number | None = None,
             lag: Number = 0, first_input_grad: bool = True) -> Problem:
    """A pipeline of uniform stages, stage s on ``devices[s]``.

    ``split`` = (I, W) cuts the backward in two; ``backward=None`` leaves it out (inference, nothing is kept).
    ``activation`` is taken by a forward and given back when its backward (its W) ends. ``lag`` is the transfer
    between stages on different devices. Without ``first_input_grad`` stage 0 has a weight gradient only.
    """
    last = len(devices) - 1
    trains = backward is not None or split is not None

    def after(block: str, source: int, target: int) -> tuple[Dependency, ...]:
        return (Dependency(block, lag if devices[source] != devices[target] else 0),)

    blocks = [Block(f"f{s}", BlockKind.FORWARD, (device,), forward, (activation if trains else 0,), (),
                    after(f"f{s - 1}", s - 1, s) if s else ()) for s, device in enumerate(devices)]
    for s in reversed(range(len(devices))) if trains else ():
        device, before = devices[s], after(f"b{s + 1}", s + 1, s) if s < last else after(f"f{s}", s, s)
        if split is None:
            assert backward is not None
            blocks.append(Block(f"b{s}", BlockKind.BACKWARD, (device,), backward, (-activation,), (), before))
            continue
        if s > 0 or first_input_grad:
            blocks.append(Block(f"b{s}", BlockKind.INPUT_GRAD, (device,), split[0], (0,), (), before))
            before = (Dependency(f"b{s}"),)
        blocks.append(Block(f"w{s}", BlockKind.WEIGHT_GRAD, (device,), split[1], (-activation,), (), before))
    return Problem("uniform", tuple(Device(f"gpu{d}", memory) for d in sorted(set(devices))), tuple(blocks))


def uneven(problem: Problem, chance: random.Random, most: int = 9, lags: int = 0) -> Problem:
    """``problem`` with durations from 1 to ``most``, and transfers of up to ``lags`` between devices."""
    return replace(problem, blocks=tuple(
        replace(block, duration=chance.randint(1, most), after=tuple(
            replace(item, lag=0 if problem.blocks[problem.index[item.block]].devices == block.devices
                    else chance.randint(0, lags)) for item in block.after))
        for block in problem.blocks))


def tight_v() -> Problem:
    """A V of two chunks on eight devices with memory for four activations each: the closure's bound is 14 % off."""
    chance = random.Random(0)
    forward = [chance.randint(40, 60) for _ in range(16)]
    problem = pipeline(v(8), memory=4)
    return replace(problem, blocks=tuple(
        replace(block, duration=forward[int(block.name[1:])] * (1 if block.name[0] == "f" else 2))
        for block in problem.blocks))


def both_ways(p: int, *, forward: Number = 1, backward: Number | None = 2,
              split: tuple[Number, Number] | None = None, activation: Number = 1, memory: Number | None = None,
              lag: Number = 0, stages: Sequence[int] | None = None) -> Problem:
    """Two pipelines over the same ``p`` devices, "down" with stage s on device s and "up" the other way round.

    A micro-batch is a pair, one each way. ``stages``: the devices of the stages of the one down, where it is no chain.
    The other arguments are those of :func:`pipeline`.
    """
    blocks: list[Block] = []
    devices: tuple[Device, ...] = ()
    down = chain(p) if stages is None else list(stages)
    for direction, placement in (("down", down), ("up", [p - 1 - device for device in down])):
        one = pipeline(placement, forward=forward, backward=backward, split=split, activation=activation, memory=memory,
                       lag=lag)
        devices = one.devices
        blocks += [replace(block, name=f"{direction}.{block.name}",
                           after=tuple(replace(item, block=f"{direction}.{item.block}") for item in block.after))
                   for block in one.blocks]
    return Problem("both ways", devices, tuple(blocks))


def in_chunks(devices: Sequence[int], chunks: int, *, forward: Number = 1, backward: Number = 2,
              split: tuple[Number, Number] | None = None, memory: Number | None = None, lag: Number = 0) -> Problem:
    """A training pipeline whose micro-batches pass in ``chunks`` of their sequence, stage s on ``devices[s]``: every
    chunk of every stage with the same times, activations of 1."""
    last = len(devices) - 1

    def after(letter: str, s: int, j: int, stage: int, chunk: int) -> tuple[Dependency, ...]:
        """On the same chunk of the neighbouring ``stage``, and the same stage's neighbouring ``chunk``."""
        found = []
        if 0 <= stage <= last:
            found.append(Dependency(f"{letter}{stage}.{j}", lag if devices[stage] != devices[s] else 0))
        if 0 <= chunk < chunks:
            found.append(Dependency(f"{letter}{s}.{chunk}"))
        return tuple(found)

    blocks = [Block(f"F{s}.{j}", BlockKind.FORWARD, (device,), forward, (1,), (), after("F", s, j, s - 1, j - 1))
              for s, device in enumerate(devices) for j in range(chunks)]
    for s, device in reversed(list(enumerate(devices))):
        for j in reversed(range(chunks)):
            waits = after("B", s, j, s + 1, j + 1) + ((Dependency(f"F{s}.{j}"),) if s == last else ())
            if split is None:
                blocks.append(Block(f"B{s}.{j}", BlockKind.BACKWARD, (device,), backward, (-1,), (), waits))
                continue
            blocks.append(Block(f"B{s}.{j}", BlockKind.INPUT_GRAD, (device,), split[0], (0,), (), waits))
            blocks.append(Block(f"W{s}.{j}", BlockKind.WEIGHT_GRAD, (device,), split[1], (-1,), (),
                                (Dependency(f"B{s}.{j}"),)))
    return Problem("in chunks", tuple(Device(f"gpu{d}", memory) for d in sorted(set(devices))), tuple(blocks))


def waves(p: int, count: int) -> list[int]:
    """The device of each stage: ``count`` times down the devices and back."""
    return v(p) * count


def any_order(problem: Problem, micro_batches: int, chance: random.Random, *, in_turn: bool = False) -> Schedule:
    """Some order that the dependencies allow, drawn from ``chance``; with ``in_turn`` blocks run their micro-batches in
    order."""
    waits = {(b, m): {(problem.index[d.block], m - d.distance) for d in block.after if m >= d.distance}
             | ({(b, m - 1)} if in_turn and m else set())
             for b, block in enumerate(problem.blocks) for m in range(micro_batches)}
    orders: list[list[tuple[int, int]]] = [[] for _ in problem.devices]
    while waits:
        key = chance.choice([key for key, needed in waits.items() if not needed & waits.keys()])
        del waits[key]
        for device in problem.blocks[key[0]].devices:
            orders[device].append(key)
    return Schedule(problem, micro_batches, time_orders(problem, micro_batches, orders), 0.0)


def valid(schedule: Schedule) -> Schedule:
    """``schedule``, which the judge accepts."""
    validate(schedule)
    return schedule


def published(problem: Problem, micro_batches: int) -> dict[str, Schedule]:
    """Every known schedule that there is for ``problem``, by name."""
    found = {}
    for name in BASELINES:
        with suppress(NotApplicable):
            found[name] = baseline(name, problem, micro_batches)
    return found


def judged(found: Periodic, more: int = 3) -> None:
    """The judge sees ``found`` repeated, until it is steady and for ``more`` micro-batches; raises what it objects."""
    problem, count = found.instance.problem, found.depth + more
    validate(Schedule(problem, count, time_orders(problem, count, repeat(found, count)), 0.0))
