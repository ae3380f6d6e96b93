"""Derived properties of ranks' lists: queues of a rank with lanes and the waits between them, collectives, and the plan
with fewer micro-batches.

A rank's instructions are in one list. The device and each of its lanes is a *queue*, which runs its blocks in the order
of the list; a block on several queues starts when all of them have reached it. Messages are another queue in the order
of the list, so both ranks of a pair see them in the same order. A queue waits only for instructions that are earlier in
the list, so a list that completes in its order completes in queues (:mod:`weft.runtime.plan.check`).

*Memory.* On one device the order of operations determines the order of allocations and releases. With lanes it does
not: a late lane releases late, while another continues. So an operation that allocates waits for all operations of its
rank that release and that are planned to end no later than it starts (:func:`memory_waits`, the waits of
:mod:`weft.solver.pools`). Then no level exceeds the planned peak, whatever the durations: of all operations that have
started and allocate, take the one with the latest planned start. All others that have allocated start no later in the
plan, and everything that the plan has released by then has been released, as that operation waited for it. So the level
is at most the planned one at that time.

*Fewer micro-batches* (:func:`shortened`). Removing the last micro-batches keeps the dependencies of the others, which
are within a micro-batch, and uses no more memory at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.runtime.plan.buffers import BufferTable
from weft.runtime.plan.plan import Plan, plan_of
from weft.runtime.plan.program import ProgramError, Reduce, Work
from weft.solver.pools import Op, mixed_pools, sign
from weft.solver.pools import memory_waits as ordered_waits
from weft.solver.schedule import Operation, Schedule

#: Planned times closer than this share of the makespan are equal.
_NEAR = 1e-9


def queues(plan: Plan, rank: int) -> Mapping[int, tuple[Work, ...]]:
    """The work of each device of ``rank`` (its own and its lanes), in order."""
    ranks = plan.vocabulary.ranks
    found: dict[int, list[Work]] = {device: [] for device in ranks.pool(rank)}
    for work in plan.program.works(rank):
        for device in ranks.held(rank, plan.vocabulary.known(work)[0]):
            found[device].append(work)
    return {device: tuple(works) for device, works in found.items()}


def memory_waits(plan: Plan, rank: int) -> Mapping[Work, tuple[Work, ...]]:
    """For each instruction of ``rank`` that allocates memory, the last instruction on each other lane among those that
    release and are planned to end by its start. Empty if the order within lanes suffices (:mod:`weft.solver.pools`)."""
    vocabulary, problem = plan.vocabulary, plan.problem
    owner = vocabulary.ranks.devices[rank]
    pools = [pool for pool in mixed_pools(problem, sign, sign) if pool.owner == owner]
    if not pools:
        return {}
    keys = {work: vocabulary.known(work) for work in plan.program.works(rank)}
    rows: list[list[Op]] = [[] for _ in problem.devices]
    for device, works in queues(plan, rank).items():
        rows[device] = [keys[work] for work in works]
    start, end = ({key: plan.times[work][side] for work, key in keys.items()} for side in (0, 1))
    steps = {key: step for step, key in enumerate(keys.values())}
    waits: dict[Work, list[Work]] = {}
    for releasing, allocating in ordered_waits(problem, pools, rows, start, end, _NEAR * plan.makespan):
        if steps[releasing] < steps[allocating]:  # the order of the list takes precedence over times
            waits.setdefault(vocabulary.work(*allocating), []).append(vocabulary.work(*releasing))
    return {work: tuple(before) for work, before in waits.items()}


def check_pool_memory(plan: Plan, rank: int, table: BufferTable, reserve: int) -> None:
    """Raise :class:`~weft.runtime.plan.program.ProgramError` unless the planned peak of ``rank`` and its slots fit in
    the device's capacity and ``reserve``, for problems with lanes and memory in bytes. A message counts twice, in its
    slot and in its reader's memory, as only the order in which lanes release a slot is known."""
    device = plan.problem.devices[plan.vocabulary.ranks.devices[rank]]
    if plan.problem.memory_unit != "B" or device.memory is None:
        return
    peak = plan.schedule.peak_memory[plan.vocabulary.ranks.devices[rank]]
    if peak + table.size > device.memory + reserve:
        raise ProgramError(f"rank {rank}'s blocks hold {peak} bytes at once and its {len(table.slots)} message "
                           f"buffers {table.size} more, but device {device.name!r} has {device.memory} and {reserve} "
                           "in reserve")


def collective_rows(plan: Plan) -> dict[int, list[str]]:
    """For each rank, the instructions of its list that other ranks run too, as texts: blocks on several ranks, and
    REDUCE instructions of several ranks."""
    ranks: dict[str, list[int]] = {}
    groups = plan.parameter_groups
    for rank, own in enumerate(plan.program.ranks):
        for work in plan.program.works(rank):
            ranks.setdefault(str(work), []).append(rank)
        for instruction in own:
            if isinstance(instruction, Reduce):
                ranks.setdefault(str(instruction), list(groups[instruction.stages]))
    return {rank: [str(instruction) for instruction in own if len(ranks.get(str(instruction), ())) > 1]
            for rank, own in enumerate(plan.program.ranks)}


def shortened(plan: Plan, micro_batches: int) -> Plan:
    """``plan`` with only its first ``micro_batches``, checked; it must have at least as many, and no rounds."""
    if micro_batches == plan.micro_batches:
        return plan
    work = plan.vocabulary.work
    operations = tuple(Operation(block, m, *plan.times[work(block, m)])
                       for block in range(len(plan.problem.blocks)) for m in range(micro_batches))
    found = plan_of(Schedule(plan.problem, micro_batches, operations, 0.0)).sharing(plan.shared)
    return replace(found, signatures=plan.signatures)
