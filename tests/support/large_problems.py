"""Large problems, drawn from a seed."""

from __future__ import annotations

import random

from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem


def chain(stages: int, devices: int, *, memory: int | None = None, seed: int = 1) -> Problem:
    """A forward and a backward of every stage, stages in runs of equal length (down and back where they divide by two)
    on the devices; random durations."""
    draw = random.Random(seed)
    blocks: list[Block] = []
    where = [s * devices // stages for s in range(stages)]
    for s in range(stages):
        after = (Dependency(f"F{s - 1}", 1 if where[s] != where[s - 1] else 0),) if s else ()
        blocks.append(Block(f"F{s}", BlockKind.FORWARD, (where[s],), draw.randint(80, 120), (1,), (), after))
    for s in reversed(range(stages)):
        last = Dependency(f"F{s}") if s + 1 == stages else Dependency(f"B{s + 1}", 1 if where[s] != where[s + 1] else 0)
        blocks.append(Block(f"B{s}", BlockKind.BACKWARD, (where[s],), draw.randint(160, 240), (-1,), (), (last,)))
    return Problem(f"chain of {stages} stages on {devices}", tuple(Device(f"gpu{d}", memory) for d in range(devices)),
                   tuple(blocks), (), "us", "activation")


def folded(devices: int, *, memory: int | None = None, seed: int = 1) -> Problem:
    """Two stages a device in a V: forwards down and back, backwards the same way."""
    draw = random.Random(seed)
    where = [*range(devices), *reversed(range(devices))]
    blocks: list[Block] = []
    for s, device in enumerate(where):
        after = (Dependency(f"F{s - 1}", 1),) if s else ()
        blocks.append(Block(f"F{s}", BlockKind.FORWARD, (device,), draw.randint(80, 120), (1,), (), after))
    for s in reversed(range(len(where))):
        last = Dependency(f"F{s}" if s + 1 == len(where) else f"B{s + 1}", 1)
        blocks.append(Block(f"B{s}", BlockKind.BACKWARD, (where[s],), draw.randint(160, 240), (-1,), (), (last,)))
    return Problem(f"V on {devices}", tuple(Device(f"gpu{d}", memory) for d in range(devices)), tuple(blocks), (), "us",
                   "activation")


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
    draw = random.Random(seed)
    every = tuple(range(devices))
    blocks = [Block("E", BlockKind.FORWARD, every, 30)]
    for s in range(devices):
        blocks.append(Block(f"F{s}", BlockKind.FORWARD, (s,), draw.randint(80, 120), (1,), (),
                            (Dependency(f"F{s - 1}", 1) if s else Dependency("E"),)))
    for s in reversed(range(devices)):
        before = Dependency(f"F{s}") if s + 1 == devices else Dependency(f"B{s + 1}", 1)
        blocks.append(Block(f"B{s}", BlockKind.BACKWARD, (s,), draw.randint(160, 240), (-1,), (), (before,)))
    blocks.append(Block("D", BlockKind.BACKWARD, every, 60, (), (), (Dependency("B0"),)))
    return Problem(f"M on {devices}", tuple(Device(f"gpu{d}", memory) for d in every), tuple(blocks), (), "us",
                   "activation")


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
