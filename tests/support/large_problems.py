"""Large problems, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.support.builders import pipeline, v
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem


def _drawn(problem: Problem, name: str, seed: int) -> Problem:
    """``problem`` with random durations, backwards twice as long."""
    draw = random.Random(seed)
    return replace(problem, name=name, time_unit="us", memory_unit="activation", blocks=tuple(
        replace(block, duration=draw.randint(80, 120) * (1 if block.kind == BlockKind.FORWARD else 2))
        for block in problem.blocks))


def chain(stages: int, devices: int, *, memory: int | None = None, seed: int = 1) -> Problem:
    """Stages in runs of equal length on the devices."""
    return _drawn(pipeline([s * devices // stages for s in range(stages)], memory=memory, lag=1),
                  f"chain of {stages} stages on {devices}", seed)


def folded(devices: int, *, memory: int | None = None, seed: int = 1) -> Problem:
    """Two stages a device in a V: forwards down and back, backwards the same way."""
    return _drawn(pipeline(v(devices), memory=memory, lag=1), f"V on {devices}", seed)


def everywhere(blocks: int, devices: int, *, seed: int = 1) -> Problem:
    """A row of blocks, each on all devices; the second half gives back what the first has taken."""
    draw = random.Random(seed)
    every = tuple(range(devices))
    made = tuple(
        Block(f"b{i}", BlockKind.OTHER, every, draw.randint(5, 20), (1 if 2 * i < blocks else -1,), (),
              (Dependency(f"b{i - 1}"),) if i else ()) for i in range(blocks))
    return Problem(f"{blocks} blocks on all of {devices}", tuple(Device(f"gpu{d}", blocks) for d in every), made, (),
                   "us", "activation")


def wide_m(devices: int, *, memory: int | None = None, seed: int = 1) -> Problem:
    """An embedding and its gradient on all devices, a chain of one stage a device between them."""
    every = tuple(range(devices))
    inner = chain(devices, devices, memory=memory, seed=seed)
    first, *others = inner.blocks
    return replace(inner, name=f"M on {devices}", blocks=(
        Block("E", BlockKind.FORWARD, every, 30), replace(first, after=(Dependency("E"),)), *others,
        Block("D", BlockKind.BACKWARD, every, 60, (), (), (Dependency("b0"),))))


def random_graph(blocks: int, devices: int, *, memory: int = 40, seed: int = 1) -> Problem:
    """Blocks with up to three producers among the fifty before them; each gives back what a block before it took."""
    draw = random.Random(seed)
    half = blocks // 2
    where = [draw.randrange(devices) for _ in range(half)]
    made: list[Block] = []
    for i in range(half):
        before = sorted({draw.randrange(max(0, i - 50), i) for _ in range(draw.randint(1, 3))}) if i else []
        made.append(Block(f"f{i}", BlockKind.FORWARD, (where[i],), draw.randint(10, 99), (1,), (),
                          tuple(Dependency(f"f{j}", draw.randint(0, 5)) for j in before)))
    consumers: list[list[int]] = [[] for _ in range(half)]
    for i, block in enumerate(made):
        for dependency in block.after:
            consumers[int(dependency.block[1:])].append(i)
    for i in reversed(range(half)):
        after = (Dependency(f"f{i}"), *(Dependency(f"b{j}", draw.randint(0, 5)) for j in consumers[i]))
        made.append(Block(f"b{i}", BlockKind.BACKWARD, (where[i],), draw.randint(20, 199), (-1,), (), after))
    return Problem(f"random graph of {blocks} blocks on {devices}",
                   tuple(Device(f"gpu{d}", memory * max(1, half // devices) // 20) for d in range(devices)),
                   tuple(made), (), "us", "activation")
