"""A data parallel job among others, as a plan of one rank with a replica on each of its ranks.

Each of its blocks that computes is on all its GPUs, and sums of gradients are on their lanes (as
:mod:`weft.models.share.data_parallel` makes them); each sum of the plan with jobs makes those REDUCEs of the job's own
plan that come behind the backwards it waits for. A block of kind ``other`` in front of the forwards is the passes of
all micro-batches of a step but the last, whose gradients are added up before anything is summed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weft.runtime.plan.plan import Plan, plan_of
from weft.runtime.plan.program import BlockWork, ProgramError, Work
from weft.runtime.share.job_plans import JobPlan, Sum
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem
from weft.solver.schedule import Operation, Schedule
from weft.solver.wide.block import WideBlock
from weft.solver.wide.rounds import Rounds

__all__ = ["data_parallel_plan"]


def data_parallel_plan(plan: Plan, rounds: Rounds, job: str, blocks: Sequence[WideBlock]) -> JobPlan:
    """The training of ``job``, of which ``blocks`` are a step, by itself.

    Raises :class:`~weft.runtime.plan.program.ProgramError` for blocks that are no such training.
    """
    ranks = sorted({rank for block in blocks for rank in _ranks(plan, block)})
    computing = [block for block in blocks if _computes(plan, job, block, ranks)]
    names = {block.name for block in computing}
    _require_nothing_behind_sums(job, computing, names)
    before, count = _accumulating(plan, job, computing)
    passing = [block for block in computing if block is not before]
    alone = _alone_plan(plan, rounds, job, passing, count)
    last = count - 1
    passes: dict[Work, tuple[str, int]] = {}
    for number, block in enumerate(alone.problem.blocks):
        for m in range(count):
            name = block.name if before is None or m == last else before.name
            passes[alone.vocabulary.work(number, m)] = name, 0
    order = [work for work in alone.program.works(0)]
    first_of = {passes[work]: work for work in reversed(order)}
    last_of = {passes[work]: work for work in order}
    waits = _before(blocks)
    sums = [block.name for block in blocks if block.name not in names]
    listed = tuple(Sum(name, frozenset(waits[name] & names)) for name in _order(plan, job, sums))
    durations: dict[str, float] = {}
    for wide in blocks:
        assert not isinstance(wide.duration, Mapping)
        durations[wide.name] = wide.duration
    return JobPlan(job, alone, tuple(ranks), len(ranks), passes, frozenset(first_of.values()),
                   frozenset(last_of.values()), listed, len(rounds.run.classes[job]), 1, durations)


def _computes(plan: Plan, job: str, block: WideBlock, ranks: Sequence[int]) -> bool:
    """Whether the block computes on all ``ranks`` of the job; False for one on a lane of each alone."""
    devices = plan.problem.devices
    gpus = [d for d in block.devices if devices[d].lane_of is None]
    if len(_ranks(plan, block)) < len(ranks) or (gpus and len(gpus) < len(block.devices)):
        where = ", ".join(devices[d].name for d in block.devices)
        raise ProgramError(f"job {job!r}: block {block.name!r} is on {where}, and jobs that share ranks are trained "
                           "data parallel, each block on all GPUs or on a lane of each, or as stages without lanes; "
                           "use --emulate")
    return bool(gpus)


def _ranks(plan: Plan, block: WideBlock) -> tuple[int, ...]:
    assert plan.rounds is not None
    return plan.vocabulary.ranks.of_block(plan.rounds.joined(plan.rounds.number[block.name], 0)[0])


def _require_nothing_behind_sums(job: str, computing: Sequence[WideBlock], names: set[str]) -> None:
    for block in computing:
        for wait in block.after:
            if wait.distance == 0 and wait.block not in names:
                raise ProgramError(f"job {job!r}: block {block.name!r} waits for {wait.block!r} of the same step, a "
                                   "communication inside it, which data parallel training has not; use --emulate")


def _accumulating(plan: Plan, job: str, computing: Sequence[WideBlock]) -> tuple[WideBlock | None, int]:
    """The block that is all micro-batches of a step but the last, and how many there are with that one."""
    told: Any = plan.solver.get("share")
    jobs = told.get("jobs", ()) if isinstance(told, Mapping) else ()
    count = next((entry.get("micro_batches", 1) for entry in jobs if entry.get("name") == job), 1)
    others = [block for block in computing if block.kind == BlockKind.OTHER
              and not any(wait.distance == 0 for wait in block.after)]
    if type(count) is not int or count < 2 or len(others) != 1:
        return None, 1
    return others[0], count


def _alone_plan(plan: Plan, rounds: Rounds, job: str, passing: Sequence[WideBlock], count: int) -> Plan:
    """A step of ``count`` micro-batches on one device, one after another, each in the order of the plan."""
    names = {block.name for block in passing}
    blocks = []
    for wide in passing:
        plain = wide.of_class(None)
        blocks.append(Block(wide.name, wide.kind, (0,), plain.duration, after=tuple(
            Dependency(wait.block) for wait in plain.after if wait.distance == 0 and wait.block in names)))
    problem = Problem(job, (Device("all ranks"),), tuple(blocks), time_unit=rounds.wide.time_unit)
    operations: list[Operation] = []
    now = 0.0
    for m in range(count):
        for name in _order(plan, job, [block.name for block in passing]):
            end = now + blocks[problem.index[name]].duration
            operations.append(Operation(problem.index[name], m, now, end))
            now = end
    try:
        alone = plan_of(Schedule(problem, count, tuple(operations), 0.0))
    except ProgramError as error:
        raise ProgramError(f"job {job!r}: {error}") from None
    if alone.why_not_trained is not None:
        raise ProgramError(f"job {job!r}: {alone.why_not_trained}")
    return alone


def _order(plan: Plan, job: str, names: Sequence[str]) -> list[str]:
    """``names`` in the order of every step, on every rank that has them."""
    wanted: set[str] = set(names)
    found: list[str] | None = None
    for rank in range(len(plan.program.ranks)):
        by_step: dict[int, list[str]] = {}
        for work in plan.program.works(rank):
            if isinstance(work, BlockWork) and work.block in wanted:
                by_step.setdefault(work.micro_batch, []).append(work.block)
        for step, order in by_step.items():
            if found is not None and order != found:
                raise ProgramError(f"job {job!r}: step {step} runs {', '.join(order)} in another order than the steps "
                                   "before it, and training runs each step alike; use --emulate")
            found = order
    return found or []


def _before(blocks: Sequence[WideBlock]) -> dict[str, set[str]]:
    """Per block, those of the same step that end before it starts."""
    waits = {block.name: [wait.block for wait in block.after if wait.distance == 0] for block in blocks}
    found: dict[str, set[str]] = {}

    def of(name: str) -> Iterator[str]:
        for other in waits[name]:
            yield other
            yield from known(other)

    def known(name: str) -> set[str]:
        if name not in found:
            found[name] = set(of(name))
        return found[name]

    return {name: known(name) for name in waits}
