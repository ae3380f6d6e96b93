"""Problems that published schedules are made for: published costs, and the shapes of pipelines.

``costs``: forward, input gradient, weight gradient and transfer as measured on A100s for GPTs of 1.5B to 28.3B
parameters (Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, the profiles in the appendix, from memory:
realistic ratios, no reference), on the paper's number of devices, as one stage a device and as a V of two. Memory for
0.5, 0.75, 1 and 2 times as many micro-batches as devices; one to eight times as many micro-batches as devices, in
turns.

``shapes``: chains, Vs, loops, waves, both directions and sequence chunks, with stages of equal times (F 20, I 20, W 20
on every device) or of times drawn from half to one and a half times that, and memory without limit, for as many
micro-batches as devices, or for half as many; 2 p + 1 micro-batches run on p devices (half as many pairs where a
micro-batch is one each way). Where micro-batches come in chunks, attention is 0.4 of the work and chunks are cut for
even work.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from weft.models.candidates.sequence_candidates import Attention, even_work, in_sequence_chunks
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem

#: Devices; microseconds of forward, input gradient, weight gradient and transfer of a stage, one a device.
_MODELS = {"1.5B": (8, (18522, 18086, 9337, 601)), "6.2B": (8, (29718, 29444, 19927, 527)),
           "14.6B": (16, (11347, 11248, 8132, 377)), "28.3B": (32, (10419, 10207, 7715, 408))}
#: Memory, and micro-batches, in times of the devices.
_MEMORY, _RUNS = (0.5, 0.75, 1.0, 2.0), (1, 2, 4, 8)
#: Shape -> ways along the devices, whether every one goes down, in both directions, chunks of a sequence.
_SHAPES = {"chain": (1, False, False, 1), "V": (2, False, False, 1), "loop 2": (2, True, False, 1),
           "loop 3": (3, True, False, 1), "wave 3": (3, False, False, 1), "wave 4": (4, False, False, 1),
           "both ways": (1, False, True, 1), "both ways, V": (2, False, True, 1),
           "chain, 2 sequence chunks": (1, False, False, 2), "chain, 4 sequence chunks": (1, False, False, 4),
           "loop 2, 2 sequence chunks": (2, True, False, 2)}
#: Times of a device's forward, and of each part of its backward; tokens of a sequence; attention's share.
_DEVICE, _TOKENS, _ATTENTION = 20.0, 8192, 0.4
#: What a device holds for one micro-batch, in parts that any number of ways and chunks divides.
_WHOLE = 48
#: A problem, its number of micro-batches, and what it is grouped by.
Drawn = tuple[Problem, int, dict[str, str | int | float]]


def costs() -> Iterator[Drawn]:
    """The problems with published costs."""
    for turn, (model, (p, (*times, transfer))) in enumerate(_MODELS.items()):
        for shape in ("chain", "V"):
            path = list(range(p)) if shape == "chain" else [*range(p), *reversed(range(p))]
            share = p / len(path)
            blocks = _blocks(path, [[time * share for time in times]] * len(path), (2, -1, -1), transfer)
            for k, memory in enumerate(_MEMORY):
                gpus = tuple(Device(f"gpu{d}", 2 * int(memory * len(path))) for d in range(p))
                count = p * _RUNS[(k + turn + 2 * (shape == "V")) % 4]
                yield (Problem(f"{model}, {shape}, memory {memory:g}p", gpus, tuple(blocks), (), "us", "unit"), count,
                       {"model": model, "shape": shape, "memory": memory, "devices": p, "micro_batches": count})


def shapes() -> Iterator[Drawn]:
    """The problems of the shapes, on 4 and 8 devices."""
    for shape in _SHAPES:
        for p in (4, 8):
            for stages in ("equal", "unequal"):
                for share in (None, 1.0, 0.5):
                    problem, count = _shaped(shape, p, stages == "unequal", share)
                    yield problem, count, {"shape": shape, "devices": p, "stages": stages, "micro_batches": count,
                                           "memory": "no limit" if share is None else share}


def _shaped(shape: str, p: int, uneven: bool, share: float | None) -> tuple[Problem, int]:
    """``share``: of the memory for p micro-batches, ``None`` without limit."""
    ways, down, twice, chunks = _SHAPES[shape]
    draw = random.Random(f"{shape} {p}")
    path = [d for way in range(ways) for d in (range(p) if down or way % 2 == 0 else reversed(range(p)))]

    def drawn(path: Sequence[int], name: str) -> list[Block]:
        times = [round(_DEVICE / ways * (draw.uniform(0.5, 1.5) if uneven else 1.0), 2) for _ in path]
        return _blocks(path, [[time] * 3 for time in times], (_WHOLE // ways, 0, -(_WHOLE // ways)), 0, name)

    memory = None if share is None else round(share * p * _WHOLE) + _WHOLE // ways
    blocks = drawn(path, "") + (drawn([p - 1 - d for d in path], "up.") if twice else [])
    made = Problem(f"{shape} on {p}", tuple(Device(f"gpu{d}", memory) for d in range(p)), tuple(blocks),
                   time_unit="ms", memory_unit="part")
    if chunks > 1:
        lengths = even_work(_TOKENS, chunks, _ATTENTION)
        made = in_sequence_chunks(made, lengths, [Attention(_ATTENTION, _ATTENTION)] * len(path))
    return replace(made, name=shape), (2 * p + 1) // 2 if twice else 2 * p + 1


def _blocks(path: Sequence[int], times: Sequence[Sequence[float]], memory: tuple[int, int, int], transfer: float,
            name: str = "") -> list[Block]:
    """A pipeline with split backwards, stage s on ``path[s]``: each stage's times and what each of its F, I and W
    takes; ``transfer`` lies between devices."""
    kinds = (BlockKind.FORWARD, BlockKind.INPUT_GRAD, BlockKind.WEIGHT_GRAD)

    def block(part: int, s: int, after: int | None, letter: str) -> Block:
        waits: tuple[Dependency, ...] = ()
        if after is not None:
            waits = (Dependency(f"{name}{letter}{after}", transfer if path[after] != path[s] else 0),)
        return Block(f"{name}{'FIW'[part]}{s}", kinds[part], (path[s],), times[s][part], (memory[part],), (), waits)

    last = len(path) - 1
    found = [block(0, s, s - 1 if s else None, "F") for s in range(last + 1)]
    for s in reversed(range(last + 1)):
        found += [block(1, s, s + 1, "I") if s < last else block(1, s, s, "F"), block(2, s, s, "I")]
    return found
