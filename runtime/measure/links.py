"""The time of messages between ranks: sent back and forth by the executor itself, over its later transport.

A token of some bytes goes from the first rank to the last and back, again and again, and nothing else is under way. The
time from the end of the sending block to the start of the waiting one is that of one message, including the executor's
overhead; a busy machine only ever adds to it, so the lower quartile counts. Several sizes give a latency and a time per
byte for each direction between neighbours.
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

#: The number of round trips of the token; the first is not counted.
ROUNDS = 6
#: The one tensor of each message.
TOKEN = "token"

Hop: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class LinkCost:
    """The cost of a message between two ranks: ``latency`` in seconds, and seconds per byte."""

    latency: float
    seconds_a_byte: float

    def seconds(self, size: float) -> float:
        """The time of a message of ``size`` bytes."""
        return self.latency + size * self.seconds_a_byte


#: By sending and receiving rank, for neighbours.
Links: TypeAlias = Mapping[Hop, LinkCost]


def measure_links(session: Session, sizes: Sequence[int]) -> Links:
    """The links between neighbours, by messages of ``sizes`` bytes: at least two sizes. All ranks call it together, and
    get the same result."""
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
    session.watch.joined()  # planning follows, and may take longer than a wait
    return {hop: line(points) for hop, points in found.items()}


def line(points: Sequence[tuple[int, float]]) -> LinkCost:
    """The latency and the time per byte that fit ``points``, sizes and seconds: the difference between the largest and
    the smallest is due to the bytes; neither is below 0."""
    (small, least), (large, most) = min(points), max(points)
    a_byte = max(0.0, (most - least) / (large - small)) if large > small else 0.0
    return LinkCost(max(0.0, least - small * a_byte), a_byte)


def there_and_back(world: int) -> tuple[Problem, list[Hop]]:
    """Blocks that pass a token from the first of ``world`` ranks to the last and back, repeatedly; and the hop that
    ends at each but the first."""
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
