"""Random small problems of the kinds that searches for schedules stumble over, each from its number."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from weft.solver.problem import Block, BlockKind, Dependency, Device, Link, Number, Problem

#: Durations: alike, whole, decimal, of many digits, and so far apart that ticks are rounded.
_TIMES: dict[str, Callable[[random.Random], Number]] = {
    "ones": lambda dice: 1,
    "whole": lambda dice: dice.randint(1, 6),
    "decimal": lambda dice: dice.choice([0.1, 0.25, 0.3, 0.7, 1.1, 1.9, 2.5, 3.3]),
    "digits": lambda dice: round(dice.uniform(0.5, 3.0), 15),
    "wide": lambda dice: dice.choice([1e-6, 3e-6, 0.7, 12.3, 1e6, 2.5e6]),
}
#: What a block does to a device's memory: takes, gives, or leaves it.
_AMOUNTS = (-3, -2, -1, -1, 0, 0, 1, 1, 2, 3)


@dataclass(frozen=True)
class Drawn:
    """A problem, and how many micro-batches are asked for."""

    problem: Problem
    micro_batches: int


def drawn(number: int, *, most_operations: int = 9, idle: int | None = None) -> Drawn:
    """Problem ``number``, which may have no schedule. ``idle`` devices without work are put in, else a few or none."""
    dice = random.Random(number)
    used = dice.choice([1, 1, 2, 2, 3])
    spare = dice.choice([0, 0, 0, 1, 3]) if idle is None else idle
    places = sorted(dice.sample(range(used + spare), used))
    size = dice.randint(1, 5)
    micro_batches = dice.randint(1, max(1, min(4, most_operations // size)))
    times = _TIMES[dice.choice(list(_TIMES))]
    links = tuple(Link(f"l{a}-{b}", a, b) for a in places for b in places if dice.random() < 0.2)
    on = [tuple(dice.sample(places, dice.choice([1, 1, 1, used]))) for _ in range(size)]
    dense = dice.choice([0.1, 0.4, 0.8])
    balanced = dice.random() < 0.4
    held: dict[int, int] = {}
    blocks = []
    for i in range(size):
        after = []
        for j in range(size):
            distance = 0 if j < i else dice.choice([1, 1, 2])
            if dice.random() < (dense if not distance else 0.1):
                ways = [None, *(link.name for link in links if link.source in on[j] and link.target in on[i])]
                after.append(Dependency(f"b{j}", dice.choice([0, 0, times(dice)]), dice.choice(ways), distance))
        memory: list[Number] = []
        for device in on[i]:
            amount = dice.choice(_AMOUNTS)
            if balanced and all(device not in later for later in on[i + 1:]):
                amount = -held.get(device, 0)
            held[device] = held.get(device, 0) + amount
            memory.append(amount)
        workspace = tuple(dice.choice([0, 0, 1, 2]) for _ in on[i]) if dice.random() < 0.4 else ()
        blocks.append(Block(f"b{i}", dice.choice(list(BlockKind)), on[i], times(dice), tuple(memory), workspace,
                            tuple(after)))
    room = dice.choice([2, 4, 7])
    devices = tuple(Device(f"g{d}", dice.choice([None, dice.randint(0, room), dice.randint(0, room)]))
                    for d in range(used + spare))
    dice.shuffle(blocks)
    problem = Problem(f"drawn {number}", devices, tuple(blocks), links, "ms", "u")
    if dice.random() < 0.15:  # amounts that are no whole numbers
        problem = _scaled(problem)
    return Drawn(problem, micro_batches)


def _scaled(problem: Problem) -> Problem:
    def tenth(amount: Number) -> Number:
        return amount / 10

    return replace(
        problem, devices=tuple(replace(d, memory=None if d.memory is None else tenth(d.memory))
                               for d in problem.devices),
        blocks=tuple(replace(b, memory=tuple(map(tenth, b.memory)), workspace=tuple(map(tenth, b.workspace)))
                     for b in problem.blocks))
