"""From per-device orders to start times: every schedule, solved or baseline, gets its times here.

Given in which order each device runs its operations, the earliest start of each is the longest path to it, over
the previous operation on each of its devices and the producers it waits for, with their transfers
(:class:`~weft.solver.problem.Dependency`). These times are the componentwise least among all schedules with
those orders, so no schedule with the same orders has a smaller makespan; memory depends on the orders alone. Where
lanes share a memory it depends on orders and waits (:class:`~weft.solver.pools.PooledOrders`), which are kept likewise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from weft.solver.control.clock import checked, checkpoint
from weft.solver.pools import PooledOrders
from weft.solver.problem import Problem
from weft.solver.schedule import Operation, operations_at

__all__ = ["Begins", "DeadlockError", "Orders", "time_orders"]

#: Per device, the ``(block, micro_batch)`` it runs, in order. A block on several devices stands in each of their rows.
Orders: TypeAlias = Sequence[Sequence[tuple[int, int]]]


@dataclass(frozen=True)
class Begins:
    """Nothing runs on a device before its entry of ``devices``, nor on a link before its entry of ``links``; in the
    problem's time unit."""

    devices: Sequence[float]
    links: Mapping[str, float]


class DeadlockError(ValueError):
    """The orders make operations wait for each other in a circle, or leave one out."""


def time_orders(problem: Problem, micro_batches: int, orders: Orders,
                begins: Begins | None = None) -> tuple[Operation, ...]:
    """Earliest start and end of every operation under ``orders``, from ``begins`` on, in the problem's time unit.

    Raises :class:`DeadlockError`, naming an operation that can never start, if the orders contradict the
    dependencies (or each other) or do not hold every block of every micro-batch once.
    """
    blocks, n = problem.blocks, micro_batches
    total = len(blocks) * n  # operation (b, m) has the number b * n + m
    _require_complete(problem, n, orders)

    waits = [0] * total
    follower = [-1] * total  # on the same device; where a block is on several, the others' are apart
    others: dict[int, list[int]] = {}
    for row in checked({id(row): row for row in orders}.values()):  # devices that run the same may share theirs
        for i, j in pairwise([block * n + m for block, m in row]):
            if follower[i] < 0:
                follower[i] = j
            else:
                others.setdefault(i, []).append(j)
            waits[j] += 1
    for (giver, k), (taker, m) in orders.waits if isinstance(orders, PooledOrders) else ():
        others.setdefault(giver * n + k, []).append(taker * n + m)
        waits[taker * n + m] += 1
    # How much greater a consumer's number is than its producer's, and what lies between them.
    consumers: list[list[tuple[int, float, str | None, int]]] = [[] for _ in blocks]
    for producer, consumer, dependency in problem.dependencies():
        distance = dependency.distance
        consumers[producer].append(((consumer - producer) * n + distance, dependency.lag, dependency.link, distance))
        for j in range(consumer * n + distance, (consumer + 1) * n):
            waits[j] += 1
    # Producers on one link share its source device, so they finish here in the order of that device's row, which
    # is the order of their transfers; this is why a link needs no more than the time at which it is free again.
    free: dict[str, float] = dict.fromkeys(problem.links_by_name, 0.0)

    durations = [block.duration for block in blocks]
    start = [0.0] * total
    if begins is not None:
        free.update(begins.links)
        for row, at in zip(orders, begins.devices, strict=True):
            if row:
                start[row[0][0] * n + row[0][1]] = max(at, start[row[0][0] * n + row[0][1]])
    ready = [i for i in range(total) if waits[i] == 0]
    for number, i in enumerate(ready):  # grows as it is read
        if not number & 4095:
            checkpoint()
        block = i // n
        end = start[i] + durations[block]
        j = follower[i]
        if j >= 0:
            if end > start[j]:
                start[j] = end
            waits[j] -= 1
            if not waits[j]:
                ready.append(j)
        for j in others.get(i, ()) if others else ():
            if end > start[j]:
                start[j] = end
            waits[j] -= 1
            if not waits[j]:
                ready.append(j)
        for further, lag, link, distance in consumers[block]:
            if distance and i % n + distance >= n:
                continue
            arrival = end + lag
            if link is not None:
                free[link] = arrival = max(end, free[link]) + lag
            j = i + further
            if arrival > start[j]:
                start[j] = arrival
            waits[j] -= 1
            if not waits[j]:
                ready.append(j)
    if len(ready) < total:
        stuck = next(i for i in range(total) if waits[i])
        raise DeadlockError(f"block {blocks[stuck // n].name!r} of micro-batch {stuck % n} can never start: "
                            "the device orders wait for each other in a circle")
    return operations_at(start, durations)


def _require_complete(problem: Problem, micro_batches: int, orders: Orders) -> None:
    if len(orders) != len(problem.devices):
        raise DeadlockError(f"there are orders for {len(orders)} devices of {len(problem.devices)}")
    complete: set[tuple[int, tuple[int, ...]]] = set()  # rows that devices with the same blocks share
    for device, row in enumerate(checked(orders)):
        if (id(row), problem.blocks_on[device]) in complete:
            continue
        here = frozenset(problem.blocks_on[device])
        expected = len(here) * micro_batches
        found = len({(block, m) for block, m in row if block in here and 0 <= m < micro_batches})
        if found != expected or len(row) != expected:
            raise DeadlockError(f"device {problem.devices[device].name!r}: its order holds {found} operations of "
                                f"{expected}, and {len(row) - found} that are there twice or do not belong there")
        complete.add((id(row), problem.blocks_on[device]))
