"""Random valid schedules of problems with choices, jobs, classes, lanes and links; all times and amounts are whole."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tests.support.wide_problems import drawn_run
from weft.solver import BlockKind, Device, Link, Schedule, time_orders
from weft.solver.problem import Block, Dependency, Problem, per_class
from weft.solver.problem.rounds import Rounds, Run

_CLASSES = ("short", "long")


@dataclass(frozen=True)
class Drawn:
    """A schedule and the problem with choices that it is one of."""

    schedule: Schedule
    whole: Problem


def drawn_schedule(seed: int) -> Drawn:
    """A schedule in which blocks run as soon as their devices' orders let them, on devices of which some hold just what
    they have room for."""
    draw = random.Random(seed)
    whole = _problem(draw, seed)
    assignments = [options for options in whole.assignments if whole.under(options).blocks]
    options = draw.choice(assignments)
    run = drawn_run(whole.under(options), seed)
    tight = {device.name for device in whole.devices if device.lane_of is None and draw.random() < 0.6}
    free = scheduled(whole, options, run, seed)
    devices = tuple(replace(device, memory=max([0, *(level for _, level in held(free, d))]))
                    if device.name in tight else device for d, device in enumerate(whole.devices))
    limited = replace(whole, devices=devices)
    return Drawn(scheduled(limited, options, run, seed), limited)


def scheduled(whole: Problem, options: Mapping[str, str], run: Run, seed: int) -> Schedule:
    """A schedule of ``whole`` under ``options`` in an order drawn from ``seed``, whatever the memory."""
    wide = whole.under(options)
    rounds = None if wide.is_plain else Rounds(wide, run)
    problem = wide.plain() if rounds is None else rounds.problem
    operations = time_orders(problem, run.rounds, _orders(problem, run.rounds, random.Random(seed)))
    return Schedule(problem, run.rounds, operations, 0.0, choices=options, rounds=rounds)


def held(schedule: Schedule, device: int) -> list[tuple[float, int]]:
    """``(time, level)`` of ``device`` and its lanes whenever something starts: what is taken so far, less what is given
    back so far."""
    problem, levels = schedule.problem, []
    for time in sorted({operation.start for operation in schedule.operations}):
        level = 0
        for block, _, start, end in schedule.operations:
            places = [p for p, d in enumerate(problem.blocks[block].devices) if problem.pool_of[d] == device]
            for place in places:
                change, space = problem.blocks[block].memory[place], problem.blocks[block].workspace[place]
                if start <= time:
                    level += int(max(change, 0) + space)
                if end <= time:
                    level += int(min(change, 0) - space)
        levels.append((time, level))
    return levels


def _orders(problem: Problem, count: int, draw: random.Random) -> list[list[tuple[int, int]]]:
    left = {(i, m) for i in range(len(problem.blocks)) for m in range(count)}
    rows: list[list[tuple[int, int]]] = [[] for _ in problem.devices]
    while left:
        ready = sorted((i, m) for i, m in left if (i, m - 1) not in left and all(
            (problem.index[wait.block], m - wait.distance) not in left for wait in problem.blocks[i].after))
        chosen = draw.choice(ready)
        left.remove(chosen)
        for device in problem.blocks[chosen[0]].devices:
            rows[device].append(chosen)
    return rows


def _problem(draw: random.Random, seed: int) -> Problem:
    devices = [Device(f"gpu{d}") for d in range(draw.choice([1, 2, 2]))]
    for owner in list(devices):
        devices += [Device(f"{engine} of {owner.name}", lane_of=owner.name)
                    for engine in ("net", "copy")[:draw.choice([0, 1, 1, 2])]]
    links = tuple(Link(f"{a}->{b}", a, b) for a in range(len(devices)) for b in range(len(devices))
                  if draw.random() < 0.4)
    choices = {name: ("x", "y", "z")[:draw.choice([2, 2, 3])] for name in ("p", "q")[:draw.choice([0, 1, 1, 2])]}
    blocks: list[Block] = []
    for job in draw.choice([(None,), (None,), ("one", "two")]):
        classes = draw.choice([(), _CLASSES, _CLASSES])
        names: list[str] = []
        for number in range(draw.choice([1, 2, 3])):
            name = f"{job or 'f'}{number}" + "*" * draw.choice([0, 0, 0, 1])
            choice = draw.choice([None, *choices])
            for option in choices[choice] if choice is not None else ("",):
                if option and draw.random() < 0.2:
                    continue
                when = {choice: option} if choice is not None else {}
                blocks.append(_block(draw, name, job, classes, when, blocks, names, len(devices), links))
            names.append(name)
        if classes and not any(block.classes for block in blocks if block.job == job):
            blocks.append(Block(f"{job}-classes", BlockKind.OTHER, (0,), job=job,
                                **per_class(duration=dict(zip(classes, (1, 3), strict=True)))))
        if not any(block.job == job for block in blocks):
            blocks.append(Block(f"{job}-only", BlockKind.OTHER, (0,), 1, (0,), job=job))
    named = {entry for block in blocks for entry in block.when.items()}
    for choice, options in choices.items():  # an option that nobody names means nothing
        blocks += [Block(f"only {choice} {option}", BlockKind.OTHER, (0,), draw.randint(1, 3), (0,),
                         when={choice: option}, job=blocks[0].job)
                   for option in options if (choice, option) not in named]
    return Problem(f"drawn{seed}", tuple(devices), tuple(blocks), links, choices=choices)


def _block(draw: random.Random, name: str, job: str | None, classes: Sequence[str], when: Mapping[str, str],
           before: Sequence[Block], names: Sequence[str], devices: int, links: Sequence[Link]) -> Block:
    on = tuple(draw.sample(range(devices), draw.choice([1, 1, 1, 2]) if devices > 1 else 1))
    waits = []
    for other in (*names, name):
        sources = [block for block in before if block.name == other]
        if draw.random() < 0.5 or (other != name and not sources):
            continue
        joining = [link.name for link in links if link.target in on and all(link.source in s.devices for s in sources)]
        link = draw.choice(joining) if joining and sources and other != name and draw.random() < 0.6 else None
        lag = {c: draw.randint(0, 2) for c in classes} if classes and draw.random() < 0.4 else draw.choice([0, 0, 1])
        distance = draw.choice([1, 2]) if other == name else draw.choice([0, 0, 0, 1, 2, 3])
        only = dict(when) if draw.random() < 0.2 else {}
        waits.append(Dependency(other, link=link, distance=distance, when=only, **per_class(lag=lag)))

    def costs(least: int, most: int) -> int | dict[str, int]:
        if classes and draw.random() < 0.6:
            return {c: draw.randint(least, most) for c in classes}
        return draw.randint(least, most)

    def amounts(least: int, most: int) -> tuple[int, ...] | dict[str, tuple[int, ...]]:
        if classes and draw.random() < 0.4:
            return {c: tuple(draw.randint(least, most) for _ in on) for c in classes}
        return tuple(draw.randint(least, most) for _ in on)

    return Block(name, BlockKind.OTHER, on, after=tuple(waits), when=when, job=job, **per_class(
        duration=costs(1, 4), memory=amounts(-1, 2), workspace=amounts(0, 1)))
