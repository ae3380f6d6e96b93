"""Which queues a rank with lanes runs, and what they wait for of each other beside results.

A rank's instructions stand in one list. The device and each of its lanes is a *queue*: it runs, in the order of the
list, what holds it; a block that holds several starts when all of them have come to it. Messages are a queue of their
own, in the order of the list too, so both ends of every pair of ranks see them in one order whatever lanes do. What a
queue waits for of another stands earlier in the list; so whatever runs through in the order of the list runs through in
queues (:mod:`weft.runtime.plan.check`).

*Memory.* On one device an order of operations is an order of what they take and give back. Of lanes it is not: one that
is late gives back late, while another goes on. So an operation that takes waits for all of its rank's that give back
and end, as planned, no later than it starts (:func:`memory_waits`). Then no level is above the planned peak, however
long things take: of all operations that have started and take, look at the one that the plan starts last. Whatever else
has taken starts no later in the plan, and what the plan has given back by then has been given back, since that one
waited for it. So the level is at most the planned one at that moment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from weft.runtime.plan.buffers import BufferTable
from weft.runtime.plan.plan import Plan
from weft.runtime.plan.program import ProgramError, Work
from weft.solver.problem import Number

__all__ = ["check_pool_memory", "memory_waits", "planned_peak", "queues"]

#: Two planned times closer than this share of the makespan are one.
_NEAR = 1e-9


def queues(plan: Plan, rank: int) -> Mapping[int, tuple[Work, ...]]:
    """Per device of ``rank``, itself and its lanes, what holds it, in order."""
    ranks = plan.vocabulary.ranks
    found: dict[int, list[Work]] = {device: [] for device in ranks.pool(rank)}
    for work in plan.program.works(rank):
        for device in ranks.held(rank, _block(plan, work)):
            found[device].append(work)
    return {device: tuple(works) for device, works in found.items()}


def memory_waits(plan: Plan, rank: int) -> Mapping[Work, tuple[Work, ...]]:
    """Per instruction of ``rank`` that takes memory, the last one on each other lane of those that give back and end, as
    planned, before it starts. Nothing where the device's memory is unlimited."""
    ranks, problem = plan.vocabulary.ranks, plan.problem
    if not problem.has_lanes or problem.devices[ranks.devices[rank]].memory is None:
        return {}
    steps = {work: step for step, work in enumerate(plan.program.works(rank))}
    near = _NEAR * plan.makespan
    givers = {device: [work for work in own if _change(plan, rank, work)[1] < 0]
              for device, own in queues(plan, rank).items()}
    ends = {device: [plan.times[work][1] for work in works] for device, works in givers.items()}
    found: dict[Work, tuple[Work, ...]] = {}
    for work, step in steps.items():
        if _change(plan, rank, work)[0] <= 0:
            continue
        held, start = ranks.held(rank, _block(plan, work)), plan.times[work][0]
        last: dict[Work, None] = {}
        for device, works in givers.items():
            place = bisect_right(ends[device], start + near) - 1
            while place >= 0 and steps[works[place]] >= step:  # the list is the order, whatever the times say
                place -= 1
            if place >= 0 and device not in held:
                last[works[place]] = None
        if last:
            found[work] = tuple(last)
    return found


def planned_peak(plan: Plan, rank: int) -> Number:
    """The most that the blocks of ``rank`` hold at once as planned. What ends gives back before what starts then takes.
    """
    near = _NEAR * plan.makespan
    steps: list[tuple[float, int, Number]] = []
    for work in plan.program.works(rank):
        takes, gives = _change(plan, rank, work)
        start, end = plan.times[work]
        steps += [(start + near, 1, takes), (end, 0, gives)]
    level: Number = 0
    peak: Number = 0
    for _, _, change in sorted(steps, key=lambda step: step[:2]):
        level += change
        peak = max(peak, level)
    return peak


def check_pool_memory(plan: Plan, rank: int, table: BufferTable, reserve: int) -> None:
    """Raise :class:`~weft.runtime.plan.program.ProgramError` unless the slots of ``rank``, in a problem with lanes, fit
    beside the planned peak in its device's capacity and ``reserve`` (both in bytes; problems whose memory is in another
    unit say nothing). What arrives for a block counts twice here, in its slot and as the block's: when lanes let go of a
    slot is known in order only."""
    device = plan.problem.devices[plan.vocabulary.ranks.devices[rank]]
    if plan.problem.memory_unit != "B" or device.memory is None:
        return
    peak = planned_peak(plan, rank)
    if peak + table.size > device.memory + reserve:
        raise ProgramError(f"rank {rank}'s blocks hold {peak} bytes at once and its {len(table.slots)} message "
                           f"buffers {table.size} more, but device {device.name!r} has {device.memory} and {reserve} "
                           "in reserve")


def _change(plan: Plan, rank: int, work: Work) -> tuple[Number, Number]:
    """What ``work`` takes when it starts and gives back (negative) when it ends, on the memory of ``rank``."""
    index = _block(plan, work)
    block, places = plan.problem.blocks[index], plan.problem.pool_places[plan.vocabulary.ranks.devices[rank]][index]
    workspace = sum(block.workspace[place] for place in places)
    return (sum(max(block.memory[place], 0) for place in places) + workspace,
            sum(min(block.memory[place], 0) for place in places) - workspace)


def _block(plan: Plan, work: Work) -> int:
    block = plan.vocabulary.block(work)
    assert block is not None, work  # the plan's program has been checked
    return block
