"""How long messages take between ranks: sent to and fro by the executor itself, over the transport that it will use.

A token of some bytes goes from the first rank to the last and back, again and again, and nothing else is under way. The
time from the end of the block that gives it to the start of the one that waits for it is that of one message, with what
the executor does about it; a busy machine only ever adds to it, so the lower quartile counts. Several sizes give a
latency and a time for each byte of each direction between neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import quantiles
from typing import TypeAlias

import torch

from weft.runtime.execute.executor import Executor, Task, Worker
from weft.runtime.interface.training import Boundary
from weft.runtime.plan.plan import Plan, plan_of
from weft.runtime.plan.program import Work
from weft.runtime.plan.timeline import Measured
from weft.runtime.ranks.session import Session
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem
from weft.solver.schedule import Schedule
from weft.solver.timing import time_orders

#: How often the token goes there and back; the first time is not counted.
ROUNDS = 6
#: The one tensor of each message.
TOKEN = "token"

Hop: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class LinkCost:
    """What a message costs between two ranks: ``latency`` in seconds, and seconds for each of its bytes."""

    latency: float
    seconds_a_byte: float

    def seconds(self, size: float) -> float:
        """Of a message of ``size`` bytes."""
        return self.latency + size * self.seconds_a_byte


#: By rank that sends and rank that receives, for neighbours.
Links: TypeAlias = Mapping[Hop, LinkCost]


def measure_links(session: Session, sizes: Sequence[int]) -> Links:
    """The links between neighbours, by messages of ``sizes`` bytes: at least two of them. All ranks call it together,
    and get the same."""
    found: dict[Hop, list[tuple[int, float]]] = {}
    for size in sizes:
        problem, hops = there_and_back(session.world)
        plan = _plan(problem)
        executor = Executor(plan, session, _Echo(plan, size, session.device))
        laps = executor.run()
        executor.close()
        everything = [lap for own in session.exchange(laps, "measuring the links") for lap in own]
        for hop, times in _times(hops, everything).items():
            found.setdefault(hop, []).append((size, quantiles(times, n=4)[0]))
    session.watch.joined()  # what follows is planning, and may take longer than a wait
    return {hop: line(points) for hop, points in found.items()}


def line(points: Sequence[tuple[int, float]]) -> LinkCost:
    """The latency and the time for each byte that fit ``points``, sizes and seconds: what the largest takes beyond the
    smallest is the bytes', neither is under 0."""
    (small, least), (large, most) = min(points), max(points)
    a_byte = max(0.0, (most - least) / (large - small)) if large > small else 0.0
    return LinkCost(max(0.0, least - small * a_byte), a_byte)


def there_and_back(world: int) -> tuple[Problem, list[Hop]]:
    """Blocks that hand a token from the first of ``world`` ranks to the last and back, the next time when it is there
    again; and which hop each is at the end of, but the first."""
    order = [*range(world), *range(world - 2, -1, -1)]
    blocks = [Block(f"hop{i}", BlockKind.OTHER, (rank,), 1e-6,
                    after=(Dependency(f"hop{i - 1}"),) if i else (Dependency(f"hop{len(order) - 1}", distance=1),))
              for i, rank in enumerate(order)]
    return (Problem("links", tuple(Device(f"rank{rank}") for rank in range(world)), tuple(blocks)),
            list(pairwise(order)))


def _plan(problem: Problem) -> Plan:
    orders = [[(block, number) for number in range(ROUNDS) for block in problem.blocks_on[device]]
              for device in range(len(problem.devices))]
    return plan_of(Schedule(problem, ROUNDS, time_orders(problem, ROUNDS, orders), 0.0, solver={"name": "links"}))


def _times(hops: Sequence[Hop], laps: Sequence[Measured]) -> dict[Hop, list[float]]:
    times = {(lap.block, lap.micro_batch): lap for lap in laps}
    found: dict[Hop, list[float]] = {}
    for i, hop in enumerate(hops):
        for number in range(1, ROUNDS):
            found.setdefault(hop, []).append(
                max(0.0, times[f"hop{i + 1}", number].start - times[f"hop{i}", number].end))
    return found


class _Echo(Worker):
    """A worker that computes nothing, whose messages have ``size`` bytes."""

    def __init__(self, plan: Plan, size: int, device: torch.device) -> None:
        self.plan, self.token = plan, torch.zeros(max(1, size), dtype=torch.uint8, device=device)
        self.looks = {TOKEN: Boundary((max(1, size),), torch.uint8)}

    def reads(self, work: Work) -> Sequence[Work]:
        return self.plan.awaits(work)

    def layout(self, what: Work, target: int) -> Mapping[str, Boundary]:
        return self.looks

    def task(self, work: Work) -> Task:
        return lambda results: {TOKEN: self.token}
