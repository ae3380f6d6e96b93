"""The time of messages between neighbouring ranks, sent by the executor over the transport that it will use.

A token travels from the first rank to the last and back, repeatedly, with no other messages. The time from the end of
the sending block to the start of the receiving one is that of one message, including the executor's overhead. Other
load only lengthens it, so the lower quartile counts. Several token sizes give a latency and a time per byte for each
direction of each pair.
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
    """The cost of a message from one rank to another: ``latency`` in seconds, and seconds per byte."""

    latency: float
    seconds_a_byte: float

    def seconds(self, size: float) -> float:
        """The time of a message of ``size`` bytes, in seconds."""
        return self.latency + size * self.seconds_a_byte


#: By sending and receiving rank, for neighbours.
Links: TypeAlias = Mapping[Hop, LinkCost]


def measure_links(session: Session, sizes: Sequence[int]) -> Links:
    """The costs of the links between neighbours, measured with messages of ``sizes`` bytes, at least two. All ranks
    call it together and get the same result."""
    by_hop: dict[Hop, list[tuple[int, float]]] = {}
    for size in sizes:
        problem, hops = round_trip(session.world)
        plan = _plan(problem)
        executor = Executor(plan, session, _Echo(plan, size, session.device))
        laps = executor.run()
        executor.close()
        everything = [lap for own in session.exchange(laps, "measuring the links") for lap in own]
        for hop, times in _times(hops, everything).items():
            by_hop.setdefault(hop, []).append((size, quantiles(times, n=4)[0]))
    session.watch.joined()  # planning follows, and may take longer than the watchdog's timeout
    return {hop: line(points) for hop, points in by_hop.items()}


def line(points: Sequence[tuple[int, float]]) -> LinkCost:
    """The line through the smallest and the largest of ``points`` (bytes, seconds): latency and seconds per byte, both
    at least 0."""
    (small, least), (large, most) = min(points), max(points)
    a_byte = max(0.0, (most - least) / (large - small)) if large > small else 0.0
    return LinkCost(max(0.0, least - small * a_byte), a_byte)


def round_trip(world: int) -> tuple[Problem, list[Hop]]:
    """A problem whose blocks pass a token from the first of ``world`` ranks to the last and back, and the hop to each
    block but the first."""
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
    by_hop: dict[Hop, list[float]] = {}
    for i, hop in enumerate(hops):
        for number in range(1, ROUNDS):
            by_hop.setdefault(hop, []).append(
                max(0.0, times[f"hop{i + 1}", number].start - times[f"hop{i}", number].end))
    return by_hop


class _Echo(Worker):
    """A worker that computes nothing and sends messages of ``size`` bytes."""

    def __init__(self, plan: Plan, size: int, device: torch.device) -> None:
        self.plan, self.token = plan, torch.zeros(max(1, size), dtype=torch.uint8, device=device)
        self.boundaries = {TOKEN: Boundary((max(1, size),), torch.uint8)}

    def reads(self, work: Work) -> Sequence[Work]:
        return self.plan.awaits(work)

    def layout(self, what: Work, target: int) -> Mapping[str, Boundary]:
        return self.boundaries

    def task(self, work: Work) -> Task:
        return lambda results: {TOKEN: self.token}
