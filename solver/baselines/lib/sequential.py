"""One micro-batch after the other: the schedule with the least memory, and so the last resort of the others."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

from weft.solver.baselines.lib.amounts import Amounts
from weft.solver.baselines.lib.base import NotApplicable
from weft.solver.control.clock import checkpoint, is_over
from weft.solver.feasibility.memory_order import MemoryStates
from weft.solver.pools import one_after_another
from weft.solver.problem import Number, Problem
from weft.solver.timing import Orders

#: The most block visits in the search for a block order.
SEARCH_LIMIT = 500_000


def orders(problem: Problem, micro_batches: int) -> Orders:
    """Per-device orders of one micro-batch at a time, for any problem.

    The blocks run in the same topological order each time, one that fits if there is one (:func:`block_order`).
    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable`, naming device and amounts, if not even this fits.
    """
    return _repeated(problem, block_order(without_lanes(problem), micro_batches), micro_batches)


def in_sequence(problem: Problem, micro_batches: int) -> Orders | None:
    """The same found without search, in about n log n steps for n operations, or None at a dead end."""
    plain = without_lanes(problem)
    amounts = Amounts.of(plain)
    order, _ = _straight_order(plain, amounts, _room_per_micro_batch(plain, amounts, micro_batches))
    return None if order is None else _repeated(problem, order, micro_batches)


def without_lanes(problem: Problem) -> Problem:
    """The problem if nothing runs in parallel: blocks on the owners of their lanes."""
    if not problem.has_lanes:
        return problem
    blocks = []
    for block in problem.blocks:
        amounts = zip(block.devices, block.memory, block.workspace, strict=True)
        change: dict[int, Number] = {}
        extra: dict[int, Number] = {}  # what is taken beyond the change, and more where that is below 0
        for d, memory, workspace in amounts:
            owner = problem.pool_of[d]
            change[owner] = change.get(owner, 0) + memory
            extra[owner] = extra.get(owner, 0) + max(memory, 0) + workspace
        blocks.append(replace(block, devices=tuple(change), memory=tuple(change.values()), workspace=tuple(
            extra[d] - max(amount, 0) for d, amount in change.items()), after=tuple(
            replace(wait, link=None) for wait in block.after)))
    return replace(problem, devices=tuple(replace(device, lane_of=None) for device in problem.devices), links=(),
                   blocks=tuple(blocks))


def _repeated(problem: Problem, order: Sequence[int], micro_batches: int) -> Orders:
    pools = Amounts.of(problem).mixed_pools if problem.has_lanes else ()
    if pools:
        every = [(block, m) for m in range(micro_batches) for block in order]
        return one_after_another(problem, pools, every)
    rows: list[list[int]] = [[] for _ in problem.devices]
    for block in order:
        for device in problem.blocks[block].devices:
            rows[device].append(block)
    repeated = {row: [(block, m) for m in range(micro_batches) for block in row] for row in set(map(tuple, rows))}
    return [repeated[tuple(row)] for row in rows]


def _straight_order(problem: Problem, amounts: Amounts, room: Sequence[int | None]
                    ) -> tuple[tuple[int, ...] | None, tuple[int, int]]:
    """The order that always takes the most preferred block that can come next and fits; at a dead end None, and the
    least amount that a device lacks there, and which device."""
    waits = [0] * len(problem.blocks)
    consumers: list[list[int]] = [[] for _ in problem.blocks]
    for producer, consumer, dependency in problem.dependencies():
        if dependency.distance == 0:
            consumers[producer].append(consumer)
            waits[consumer] += 1
    place = {block: place for place, block in enumerate(_preference(problem, amounts))}
    ready = [(place[i], i) for i, count in enumerate(waits) if not count]
    heapq.heapify(ready)
    levels = [0] * len(problem.devices)
    blocked: list[list[tuple[int, int]]] = [[] for _ in problem.devices]  # by the device that has too little room
    order: list[int] = []
    while ready:
        entry = heapq.heappop(ready)
        i = entry[1]
        devices = problem.blocks[i].devices
        full = next((d for d in devices if (limit := room[d]) is not None and levels[d] + amounts.take[d][i] > limit),
                    None)
        if full is not None:
            blocked[full].append(entry)
            continue
        order.append(i)
        for d in devices:
            levels[d] += amounts.change[d][i]
            if blocked[d] and amounts.change[d][i] < 0:
                for waiting in blocked[d]:
                    heapq.heappush(ready, waiting)
                blocked[d] = []
        for consumer in consumers[i]:
            waits[consumer] -= 1
            if not waits[consumer]:
                heapq.heappush(ready, (place[consumer], consumer))
    if len(order) == len(waits):
        return tuple(order), (0, -1)
    return None, min((levels[d] + amounts.take[d][i] - (room[d] or 0), d)
                     for d, entries in enumerate(blocked) for _, i in entries)


def _preference(problem: Problem, amounts: Amounts) -> list[int]:
    """All blocks, those that give memory back first, the others in topological order."""
    gain = [sum(amounts.change[device][i] for device in block.devices) for i, block in enumerate(problem.blocks)]
    rank = {block: place for place, block in enumerate(problem.topological_order)}
    return sorted(rank, key=lambda i: (gain[i] > 0, rank[i]))


def block_order(problem: Problem, micro_batches: int) -> tuple[int, ...]:
    """A topological order of the blocks with which ``micro_batches`` fit one at a time: the straight one, or the result
    of a search over the sets of blocks that have run (:class:`~weft.solver.feasibility.memory_order.MemoryStates`).

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` if it found none.
    """
    amounts = Amounts.of(problem)
    room = _room_per_micro_batch(problem, amounts, micro_batches)
    straight, lacking = _straight_order(problem, amounts, room)
    if straight is not None:
        return straight
    states = MemoryStates(problem, (amounts.take, amounts.change, room), 1, oldest_first=True)
    found = states.search(SEARCH_LIMIT, is_over)
    if found.order is not None:
        return tuple(block for block, _ in found.order)
    checkpoint()
    excess, device = lacking
    # The limit excludes the memory that earlier micro-batches keep; a person compares with the device's capacity.
    capacity = amounts.room[device]
    assert capacity is not None
    verdict = "even one micro-batch at a time does not fit" if found.impossible else \
        "no order of the blocks was found in which one micro-batch at a time fits"
    raise NotApplicable(
        f"{verdict}: device {problem.devices[device].name!r} would hold "
        f"{amounts.amount(capacity + excess, problem.memory_unit)} of its "
        f"{amounts.amount(capacity, problem.memory_unit)}")


def _room_per_micro_batch(problem: Problem, amounts: Amounts, micro_batches: int) -> list[int | None]:
    """Each device's room for the worst of the micro-batches, which is the last if they leave memory occupied."""
    room: list[int | None] = []
    for device, capacity in enumerate(amounts.room):
        left = sum(amounts.change[device][i] for i in problem.blocks_on[device])
        room.append(None if capacity is None else capacity - max(0, left) * (micro_batches - 1))
    return room
