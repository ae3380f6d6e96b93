"""Random small problems with lanes."""

from __future__ import annotations

import random
from dataclasses import replace

from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem


def drawn_with_lanes(number: int, *, most_blocks: int = 5, balanced: bool = True) -> Problem:
    """Problem ``number``: one or two devices with a lane or two, all whole numbers, no links. Amounts are taken by one
    block and given back by a later one that waits for it; with ``balanced`` all are, else some stay, and some are given
    by whoever."""
    dice = random.Random(number)
    owners = dice.choice([1, 1, 2])
    devices = [Device(f"gpu{d}", dice.choice([None, 1, 2, 2, 3, 4])) for d in range(owners)]
    devices += [Device(f"lane{e}", lane_of=f"gpu{dice.randrange(owners)}") for e in range(dice.choice([1, 1, 2]))]
    dice.shuffle(devices)
    size = dice.randint(2, most_blocks)
    on = [dice.randrange(len(devices)) for _ in range(size)]
    owner = [next(d for d, device in enumerate(devices) if device.name == (devices[e].lane_of or devices[e].name))
             for e in on]
    memory = [0] * size
    waits = [{j for j in range(i) if dice.random() < 0.3} for i in range(size)]
    for _ in range(dice.randint(1, 3)):
        taker = dice.randrange(size)
        givers = [j for j in range(taker + 1, size) if owner[j] == owner[taker] and memory[j] <= 0]
        if memory[taker] < 0 or not givers:
            continue
        giver, amount = dice.choice(givers), dice.randint(1, 2)
        memory[taker] += amount
        memory[giver] -= amount
        waits[giver].add(taker)
    if not balanced:
        for i in range(size):
            if dice.random() < 0.2:
                memory[i] += dice.choice([-1, 1])
    blocks = []
    for i in range(size):
        after = [Dependency(f"b{j}", dice.choice([0, 0, 0, 1])) for j in sorted(waits[i])]
        if dice.random() < 0.1:
            after.append(Dependency(f"b{dice.randrange(size)}", 0, None, 1))
        workspace = dice.choice([0, 0, 0, 0, 1])
        blocks.append(Block(f"b{i}", BlockKind.OTHER, (on[i],), dice.randint(1, 3), (memory[i],), (workspace,),
                            tuple(after)))
    return Problem(f"lanes {number}", tuple(devices), tuple(blocks), (), "ms", "u")


def on_one_lane(problem: Problem) -> Problem:
    """``problem``, which has no lanes, with everything that a device runs on a lane of it in place of itself."""
    count = len(problem.devices)
    lanes = tuple(Device(f"{device.name} engine", lane_of=device.name) for device in problem.devices)
    return replace(problem, devices=(*problem.devices, *lanes), links=tuple(
        replace(link, source=link.source + count, target=link.target + count) for link in problem.links), blocks=tuple(
        replace(block, devices=tuple(d + count for d in block.devices)) for block in problem.blocks))
