"""Random small problems with lanes, and their least makespan by trying every start; shares no code with the search."""

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


def least_makespan_in_time(problem: Problem, micro_batches: int) -> int | None:
    """The least makespan over all whole starts; None if no schedule fits. Operations are added by rising start."""
    blocks = problem.blocks
    owner = [next(d for d, other in enumerate(problem.devices) if other.name == (device.lane_of or device.name))
             for device in problem.devices]
    waits = [[(problem.index[a.block], int(a.lag), a.distance) for a in b.after] for b in blocks]
    takes = [{owner[d]: sum(max(b.memory_on(e), 0) + b.workspace_on(e) for e in b.devices if owner[e] == owner[d])
              for d in b.devices} for b in blocks]
    gives = [{owner[d]: sum(max(-b.memory_on(e), 0) + b.workspace_on(e) for e in b.devices if owner[e] == owner[d])
              for d in b.devices} for b in blocks]
    best: int | None = None
    ran: list[tuple[int, int, int]] = []  # block, micro-batch, start

    def end_of(block: int, m: int) -> int | None:
        return next((start + int(blocks[i].duration) for i, k, start in ran if (i, k) == (block, m)), None)

    def fits(time: int) -> bool:
        for d, device in enumerate(problem.devices):
            if device.memory is None:
                continue
            level = sum(takes[i].get(d, 0) for i, _, start in ran)
            level -= sum(gives[i].get(d, 0) for i, _, start in ran if start + blocks[i].duration <= time)
            takes_now = any(takes[i].get(d, 0) for i, _, start in ran if start == time)
            if takes_now and level > device.memory:
                return False
        return True

    def add(following: list[int]) -> None:
        nonlocal best
        latest = max((start + int(blocks[i].duration) for i, _, start in ran), default=0)
        if best is not None and latest >= best:
            return
        if all(m == micro_batches for m in following):
            best = latest
            return
        now = ran[-1][2] if ran else 0
        for i, m in enumerate(following):
            if m == micro_batches:
                continue
            arrivals = [(end_of(j, m - h), lag) for j, lag, h in waits[i] if m >= h]
            busy = [start + int(blocks[j].duration) for j, _, start in ran
                    if set(blocks[j].devices) & set(blocks[i].devices)]
            if any(end is None for end, _ in arrivals):
                continue
            ready = max([now, *busy, *((end or 0) + lag for end, lag in arrivals)])
            for start in range(ready, max(ready, latest) + 1):
                ran.append((i, m, start))
                if fits(start):
                    add([*following[:i], m + 1, *following[i + 1:]])
                ran.pop()

    add([0] * len(blocks))
    return best
