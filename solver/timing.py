"""From per-device orders to start times: every schedule, solved or baseline, gets its times here.

For given orders of operations on each device, the earliest start of each is the longest path to it, over the previous
operation on each of its devices and the producers it waits for, with their transfers
(:class:`~weft.solver.problem.Dependency`). These times are the componentwise least among all schedules with those
orders, so no schedule with the same orders has a smaller makespan; memory depends on the orders alone. If lanes share a
memory it depends on orders and waits (:class:`~weft.solver.pools.PooledOrders`), which are kept likewise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from weft.solver.control.clock import checked, checkpoint
from weft.solver.control.compiled import compiled_kernel
from weft.solver.pools import PooledOrders
from weft.solver.problem import Problem
from weft.solver.schedule import Operation, operations_at

Array: TypeAlias = npt.NDArray[Any]

#: Per device, the ``(block, micro_batch)`` it runs, in order. A block on several devices is in each of their rows.
Orders: TypeAlias = Sequence[Sequence[tuple[int, int]]]
#: From this many operations on, the compiled kernel times them, if available.
_MANY = 512


@dataclass(frozen=True)
class Begins:
    """Nothing runs on a device before its entry of ``devices``, nor on a link before its entry of ``links``; in the
    problem's time unit."""

    devices: Sequence[float]
    links: Mapping[str, float]


class DeadlockError(ValueError):
    """The orders make operations wait for each other in a cycle, or omit one."""


def time_orders(problem: Problem, micro_batches: int, orders: Orders,
                begins: Begins | None = None) -> Sequence[Operation]:
    """Earliest start and end of every operation under ``orders``, from ``begins`` on, in the problem's time unit.

    Raises :class:`DeadlockError`, naming an operation that can never start, if the orders contradict the dependencies
    (or each other) or do not contain every block of every micro-batch once.
    """
    problem.require_plain()
    n = micro_batches
    durations = [block.duration for block in problem.blocks]
    total = len(durations) * n  # operation (b, m) has the number b * n + m
    free = dict.fromkeys(problem.links_by_name, 0.0) | (dict(begins.links) if begins else {})
    library = compiled_kernel() if _MANY <= total < 2**31 else None
    edges = None if library is None else _edges(problem, n, orders)
    if edges is None:
        _require_complete(problem, n, orders)
    start = np.zeros(total)
    if begins is not None:
        for row, at in zip(orders, begins.devices, strict=True):
            if row:
                first = row[0][0] * n + row[0][1]
                start[first] = max(at, start[first])
    if library is None or edges is None:
        stuck, start = _by_loop(problem, n, orders, free, start.tolist())
    else:
        checkpoint()
        links = np.array([free[link.name] for link in problem.links])
        arrays = [np.array(durations, dtype=float), *arcs_by_source(problem).values()]
        stuck = library.weft_times(len(durations), n, *(array.ctypes.data for array in arrays), len(edges[0]),
                                   *(array.ctypes.data for array in (*edges, links, start)))
    if stuck >= 0:
        raise DeadlockError(f"block {problem.blocks[stuck // n].name!r} of micro-batch {stuck % n} can never start: "
                            "the device orders wait for each other in a circle")
    return operations_at(start, durations)


def begins_of(sizes: Sequence[int]) -> Array:
    """The begins of consecutive runs of these ``sizes``, and the end of the last."""
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)


def arcs_by_source(problem: Problem) -> dict[str, Array]:
    """The dependents of each block, in file order: target, distance, link (-1 without) and lag."""
    arcs = sorted(problem.dependencies(), key=lambda arc: arc[0])  # stable: those of one block keep their order
    links = {name: k for k, name in enumerate(problem.links_by_name)}
    sizes = np.bincount([arc[0] for arc in arcs], minlength=len(problem.blocks))
    return {"arc_begin": begins_of(sizes.tolist()),
            "arc_target": np.array([arc[1] for arc in arcs], dtype=np.int32),
            "arc_distance": np.array([arc[2].distance for arc in arcs], dtype=np.int32),
            "arc_link": np.array([-1 if arc[2].link is None else links[arc[2].link] for arc in arcs], dtype=np.int32),
            "arc_lag": np.array([arc[2].lag for arc in arcs], dtype=np.float64)}


def _edges(problem: Problem, n: int, orders: Orders) -> tuple[Array, Array] | None:
    """Each operation and its successors on a device or in waits for memory; None if orders are not complete."""
    if len(orders) != len(problem.devices):
        return None
    rows = {(id(row), problem.blocks_on[device]): row for device, row in enumerate(orders)}
    numbers: dict[int, Array] = {}
    for (key, here), row in checked(rows.items()):
        block, m = np.fromiter(chain.from_iterable(row), np.int64, 2 * len(row)).reshape(-1, 2).T
        expected = (np.array(here, dtype=np.int64)[:, None] * n + np.arange(n)).ravel()
        numbers[key] = block * n + m
        if (m < 0).any() or (m >= n).any() or not np.array_equal(np.sort(numbers[key]), expected):
            return None
    waits = [(giver * n + k, taker * n + m) for (giver, k), (taker, m) in orders.waits
             ] if isinstance(orders, PooledOrders) else []
    pairs = [np.array(waits, dtype=np.int64).reshape(-1, 2).T, *(np.stack((row[:-1], row[1:])) for row in
                                                                 numbers.values())]
    source, target = np.concatenate(pairs, axis=1).astype(np.int32, order="C")
    return source, target


def _by_loop(problem: Problem, n: int, orders: Orders, free: dict[str, float], start: list[float]
             ) -> tuple[int, npt.NDArray[np.float64]]:
    """The first operation that can never start, or -1, and the longest paths; nothing is before its ``start``, nor on a
    link before it is ``free``."""
    blocks, total = problem.blocks, len(start)
    waits = [0] * total
    follower = [-1] * total  # on the same device; for a block on several, the others are separate
    others: dict[int, list[int]] = {}
    for row in checked({id(row): row for row in orders}.values()):  # devices with the same operations may share theirs
        for i, j in pairwise([block * n + m for block, m in row]):
            if follower[i] < 0:
                follower[i] = j
            else:
                others.setdefault(i, []).append(j)
            waits[j] += 1
    for (giver, k), (taker, m) in orders.waits if isinstance(orders, PooledOrders) else ():
        others.setdefault(giver * n + k, []).append(taker * n + m)
        waits[taker * n + m] += 1
    # The difference between a consumer's number and its producer's, and the arc between them.
    consumers: list[list[tuple[int, float, str | None, int]]] = [[] for _ in blocks]
    for producer, consumer, dependency in problem.dependencies():
        distance = dependency.distance
        consumers[producer].append(((consumer - producer) * n + distance, dependency.lag, dependency.link, distance))
        for j in range(consumer * n + distance, (consumer + 1) * n):
            waits[j] += 1
    # Producers on one link share its source device, so they finish here in the order of that device's row, which
    # is the order of their transfers; this is why a link needs no more than the time at which it is free again.
    ready = [i for i in range(total) if waits[i] == 0]
    for number, i in enumerate(ready):  # grows as it is read
        if not number & 4095:
            checkpoint()
        block = i // n
        end = start[i] + blocks[block].duration
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
    return next((i for i in range(total) if waits[i]), -1), np.array(start)


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
