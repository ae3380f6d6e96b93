"""List scheduling under memory: whatever may start now starts, the most urgent first. For any block graph.

A heuristic of ours in the manner of list scheduling (Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM J.
Appl. Math. 17, 1969). Two things keep it from filling the memory with forwards that cannot be finished: only so many
micro-batches are in flight at once, and what frees memory is more urgent. Several numbers and two notions of urgency
are tried and the shortest schedule that fits is kept; where none fits, micro-batches run one at a time
(:mod:`solver.baselines.sequential`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from solver.baselines import sequential
from solver.baselines.amounts import Amounts
from solver.baselines.base import Row
from solver.problem import BlockKind, Problem
from solver.timing import time_orders

__all__ = ["list_schedule", "orders"]

#: With more micro-batches than this, the settings are tried on so many first and only the best are run in full.
TRIAL_MICRO_BATCHES = 64


def orders(problem: Problem, micro_batches: int) -> list[Row]:
    """Per-device orders for any problem; memory, links and all kinds of dependencies are respected.

    Raises :class:`~solver.baselines.base.NotApplicable` if not even one micro-batch at a time fits.
    """
    trial = min(micro_batches, TRIAL_MICRO_BATCHES)
    amounts = Amounts.of(problem)
    ranked: list[tuple[float, int, int, list[int], list[Row]]] = []  # makespan, in flight, number of the urgency ...
    for number, urgency in enumerate(_urgencies(problem, amounts)):
        best: tuple[float, int] | None = None
        for width in _widths(trial):
            rows = list_schedule(problem, trial, width, urgency, amounts)
            if rows is not None:
                makespan = _makespan(problem, trial, rows)
                ranked.append((makespan, width, number, urgency, rows))
                best = min(best or (makespan, width), (makespan, width))
        for width in _between(best):
            rows = list_schedule(problem, trial, width, urgency, amounts)
            if rows is not None:
                ranked.append((_makespan(problem, trial, rows), width, number, urgency, rows))
    ranked.sort(key=lambda entry: entry[:3])
    for _, width, _, urgency, rows in ranked:
        full = rows if trial == micro_batches else list_schedule(problem, micro_batches, width, urgency, amounts)
        if full is not None:
            return full
    return sequential.orders(problem, micro_batches)


def list_schedule(problem: Problem, micro_batches: int, width: int, urgency: list[int],
                  amounts: Amounts) -> list[Row] | None:
    """Per-device orders of one pass through time, or ``None`` where memory leaves it stuck.

    At every time at which something ends or arrives, each block's next micro-batch starts if it has what it waits for,
    its devices are free and its memory fits; ``urgency`` lists all blocks, the most urgent first. At most ``width``
    micro-batches are in flight.
    """
    blocks, n = problem.blocks, micro_batches
    count = len(blocks)
    waits = [0] * (count * n)  # operation (b, m) has the number b * n + m
    arrival = [0.0] * (count * n)
    consumers: list[list[tuple[int, float, str | None, int]]] = [[] for _ in blocks]
    for producer, consumer, dependency in problem.dependencies():
        consumers[producer].append((consumer, dependency.lag, dependency.link, dependency.distance))
        for m in range(dependency.distance, n):
            waits[consumer * n + m] += 1
    needs = [[(d, amounts.take[d][i], room) for d in block.devices if (room := amounts.room[d]) is not None]
             for i, block in enumerate(blocks)]
    link_free = dict.fromkeys(problem.links_by_name, 0.0)
    device_free = [0.0] * len(problem.devices)
    levels = [0] * len(problem.devices)
    following = [0] * count  # each block's next micro-batch
    started = [0] * n
    in_flight = 0
    rows: list[Row] = [[] for _ in problem.devices]
    times, now, left = [0.0], 0.0, count * n

    while left:
        if not times:
            return None
        now = heapq.heappop(times)
        while times and times[0] == now:
            heapq.heappop(times)
        for i in urgency:
            m = following[i]
            if m == n or waits[i * n + m] or arrival[i * n + m] > now:
                continue
            block = blocks[i]
            if any(device_free[d] > now for d in block.devices) or (not started[m] and in_flight >= width):
                continue
            if any(levels[d] + take > room for d, take, room in needs[i]):
                continue
            following[i] = m + 1
            in_flight += (started[m] == 0) - (started[m] == count - 1)
            started[m] += 1
            left -= 1
            end = now + block.duration
            heapq.heappush(times, end)
            for d in block.devices:
                rows[d].append((i, m))
                device_free[d] = end
                levels[d] += amounts.change[d][i]  # nothing else starts there before this block has ended
            for consumer, lag, link, distance in consumers[i]:
                if m + distance >= n:
                    continue
                begin = end if link is None else max(end, link_free[link])
                j = consumer * n + m + distance
                waits[j] -= 1
                arrival[j] = max(arrival[j], begin + lag)
                if link is not None:
                    link_free[link] = begin + lag
                if begin + lag > end:
                    heapq.heappush(times, begin + lag)
    return rows


def _urgencies(problem: Problem, amounts: Amounts) -> Iterator[list[int]]:
    """Two ways to say which block is more urgent; both then prefer the longer way to the end of the micro-batch."""
    tail = [0.0] * len(problem.blocks)
    after: list[list[tuple[int, float]]] = [[] for _ in problem.blocks]
    for producer, consumer, dependency in problem.dependencies():
        if dependency.distance == 0:
            after[producer].append((consumer, dependency.lag))
    for i in reversed(problem.topological_order):
        tail[i] = problem.blocks[i].duration + max((lag + tail[j] for j, lag in after[i]), default=0.0)
    frees = [sum(amounts.change[d][i] for d in block.devices) < 0 for i, block in enumerate(problem.blocks)]
    yield sorted(range(len(problem.blocks)), key=lambda i: (not frees[i], -tail[i]))
    # Weight gradients as filler: nobody waits for them, so anything that others wait for goes first.
    place = {BlockKind.BACKWARD: 0, BlockKind.INPUT_GRAD: 0, BlockKind.RECOMPUTE: 0, BlockKind.WEIGHT_GRAD: 2}
    yield sorted(range(len(problem.blocks)), key=lambda i: (place.get(problem.blocks[i].kind, 1), -tail[i]))


def _widths(micro_batches: int) -> Iterator[int]:
    width = micro_batches
    while width > 1:
        yield width
        width = (width + 1) // 2
    yield 1


def _between(best: tuple[float, int] | None) -> list[int]:
    """Numbers of micro-batches in flight that halving has skipped, on both sides of the best."""
    if best is None:
        return []
    width = best[1]
    return [w for w in sorted({width * 3 // 4, width * 3 // 2}) if w not in (0, width)]


def _makespan(problem: Problem, micro_batches: int, rows: list[Row]) -> float:
    return max(operation.end for operation in time_orders(problem, micro_batches, rows))
