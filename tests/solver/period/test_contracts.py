"""Two contracts over the registries: no refuter refutes what brute force achieves, no improver offers what the judge
refuses. Both on 200 tiny problems, and both suites notice a technique that breaks its contract.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from math import ceil, inf

import pytest

from tests.oracles.brute import least_chain_period, least_whole_period
from tests.support.builders import chain, loop, pipeline, uneven, v
from weft.solver import Block, BlockKind, Dependency, Device, Operation, Problem, Schedule, violations
from weft.solver.cpsat.budget import Budget, Slice
from weft.solver.period import Bracket, Periodic
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.period.registry import IMPROVERS, REFUTERS
from weft.solver.period.technique import Improver, Refuter, Task
from weft.solver.relations.min_dist import least_open_period, takes_before_giving
from weft.solver.ticks import TickProblem

COUNT = 200
#: Sharper than this no refuter is asked to be.
MOST_LEVELS = 4


@dataclass(frozen=True)
class Tiny:
    """A problem and the least whole period that brute force achieves, in ticks."""

    instance: TickProblem
    least: int


@cache
def tiny_problems() -> tuple[Tiny, ...]:
    """Pipelines, any small graphs of blocks, and sixteen devices side by side (which subsets of devices need)."""
    chance = random.Random(7)
    pipelines = [_pipeline(chance) for _ in range(64)]
    short = [(problem, least) for problem, least in pipelines if len(problem.blocks) == 4]
    unions = [_union([chance.choice(short) for _ in range(8)]) for _ in range(16)]
    graphs = [_graph(chance) for _ in range(COUNT - 80)]
    return tuple(Tiny(instance, ceil(least / instance.tick)) for problem, least in (*pipelines, *graphs, *unions)
                 for instance in [TickProblem.of(problem)])


def _pipeline(chance: random.Random) -> tuple[Problem, int]:
    devices, memory, long = chance.choice([(chain(2), (1, 3), 3), (chain(3), (1, 4), 2), (v(2), (3, 4), 2),
                                           (loop(2), (3, 5), 2)])
    problem = uneven(pipeline(devices, memory=chance.randint(*memory)), chance, long,
                     chance.choice([0, 0, 1]))
    least = least_chain_period(problem, 60)
    assert least is not None
    return problem, least


def _graph(chance: random.Random) -> tuple[Problem, int]:
    """Two to four blocks on one or two devices; a device's last block gives back what is held there."""
    while True:
        count, size = chance.randint(1, 2), chance.randint(2, 4)
        on = [tuple(sorted(chance.sample(range(count), chance.choice([1, 1, 1, count])))) for _ in range(size)]
        last = {device: i for i, devices in enumerate(on) for device in devices}
        held, blocks = Counter[int](), []
        for i, devices in enumerate(on):
            amounts = [-held[d] if last[d] == i else chance.choice([0, 0, 1, 2]) for d in devices]
            held.update(dict(zip(devices, amounts, strict=True)))
            after = [Dependency(f"b{j}", chance.choice([0, 0, 1])) for j in range(i)
                     if j == i - 1 or chance.random() < 0.3]
            if i == 0 and chance.random() < 0.3:
                after.append(Dependency(f"b{size - 1}", 0, None, 1))
            blocks.append(Block(f"b{i}", BlockKind.OTHER, devices, chance.randint(1, 3), tuple(amounts), (),
                                tuple(after)))
        room = [chance.choice([None, 2, 3, 4]) for _ in range(count)]
        problem = Problem("graph", tuple(Device(f"gpu{d}", memory) for d, memory in enumerate(room)), tuple(blocks))
        instance = TickProblem.of(problem)
        if instance.balanced and takes_before_giving(instance):
            least = least_whole_period(problem, 14)
            if least is not None:
                return problem, least


def _union(parts: Sequence[tuple[Problem, int]]) -> tuple[Problem, int]:
    """Pipelines side by side: their least periods are known, feasibility is monotone, so the longest is the least."""
    devices: list[Device] = []
    blocks: list[Block] = []
    for number, (part, _) in enumerate(parts):
        first = len(devices)
        devices += [replace(device, name=f"{number}.{device.name}") for device in part.devices]
        blocks += [replace(block, name=f"{number}.{block.name}", devices=tuple(first + d for d in block.devices),
                           after=tuple(replace(wait, block=f"{number}.{wait.block}") for wait in block.after))
                   for block in part.blocks]
    return Problem("side by side", tuple(devices), tuple(blocks)), max(least for _, least in parts)


# -- refuters ----------------------------------------------------------------------------------------------------------


def wrong_refutations(refuters: Sequence[type[Refuter]]) -> tuple[list[str], Counter[str], Counter[str]]:
    """Periods that were refuted and have a steady state; how many problems each refuter looked at; and of how many it
    refuted the period below the least."""
    wrong, asked, sharp = [], Counter[str](), Counter[str]()
    for number, tiny in enumerate(tiny_problems()):
        start = one_at_a_time(tiny.instance)
        for technique in refuters:
            bracket = Bracket(tiny.instance, Fraction(tiny.instance.heaviest_load), start)
            refuter = technique.of(bracket, Task(tiny.instance.heaviest_load))
            if refuter is None:
                continue
            asked[technique.name] += 1
            time = Slice(Budget(deterministic=2.0), inf, 0.5)
            below = False
            for level in range(MOST_LEVELS):
                for period in (tiny.least, tiny.least + 1)[:1 if level else 2]:
                    if refuter.refutes([period], time):
                        wrong.append(f"problem {number}: {technique.name} refutes {period}, least is {tiny.least}")
                below = below or bool(refuter.refutes([tiny.least - 1], time))
                if not refuter.sharpen(time) or not refuter.ready(time):
                    break
            if bracket.best.period <= tiny.least - 1:
                wrong.append(f"problem {number}: {technique.name} offers {bracket.best.period}")
            sharp[technique.name] += below
    return wrong, asked, sharp


@pytest.mark.slow
def test_no_refuter_refutes_what_brute_force_achieves() -> None:
    wrong, asked, sharp = wrong_refutations(REFUTERS)
    assert not wrong, wrong[:5]
    assert all(asked[technique.name] >= 15 for technique in REFUTERS), asked
    assert all(sharp[technique.name] >= 10 for technique in REFUTERS), sharp


# -- improvers ---------------------------------------------------------------------------------------------------------


def unrolled(found: Periodic) -> Schedule:
    """``found`` at its own times, until it is steady and for three micro-batches more."""
    problem, tick = found.instance.problem, found.instance.tick
    count = found.depth + 3
    first = min(found.starts)
    operations = []
    for block, start in enumerate(found.starts):
        for m in range(count):
            begin = (start - first + m * found.period) * tick
            end = begin + found.instance.durations[block] * tick
            operations.append(Operation(block, m, float(begin), float(end)))
    return Schedule(problem, count, tuple(operations), 0.0)


def offers(technique: type[Improver], tiny: Tiny) -> Iterator[Periodic]:
    """Everything that the improver offers, from the trivial start on."""
    heard: list[Periodic] = []
    start = one_at_a_time(tiny.instance)
    bracket = Bracket(tiny.instance, Fraction(tiny.instance.heaviest_load), start,
                      lambda changed: heard.append(changed.best))
    near = least_open_period(tiny.instance, ceil(start.period))
    task = Task(near)
    improver = technique.of(bracket, task)
    if improver is not None:
        improver.improve(bracket, Slice(Budget(deterministic=0.2), 0.2, 0.05))
    yield from (found for found in heard if found is not start)


def refused_offers(improvers: Sequence[type[Improver]]) -> tuple[list[str], Counter[str]]:
    """Offers that the judge refuses or that are shorter than any steady state; and how many there were."""
    refused, offered = [], Counter[str]()
    for number, tiny in enumerate(tiny_problems()):
        for technique in improvers:
            for found in offers(technique, tiny):
                offered[technique.name] += 1
                if faults := violations(unrolled(found), limit=1):
                    refused.append(f"problem {number}: {technique.name}: {faults[0]}")
                if ceil(found.period) < tiny.least:
                    refused.append(f"problem {number}: {technique.name} offers {found.period}, least is {tiny.least}")
    return refused, offered


@pytest.mark.slow
def test_no_improver_offers_what_the_judge_refuses() -> None:
    refused, offered = refused_offers(IMPROVERS)
    assert not refused, refused[:5]
    assert all(offered[technique.name] >= 20 for technique in IMPROVERS), offered
