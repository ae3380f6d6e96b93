"""A plan with jobs, taken apart: what each job's own training runs on a rank, and where in the common order it stands.

A job that trains among others is data parallel: each of its blocks that computes is on all ranks, and sums of gradients
are on their lanes (as :mod:`weft.models.share.data_parallel` makes them). By itself it is then a plan of one rank, run
in as many replicas as there are ranks; each sum of the plan with jobs makes those REDUCEs of the job's own plan that
come behind the backwards it waits for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from weft.runtime.plan.plan import Plan, plan_of
from weft.runtime.plan.program import BlockWork, ProgramError, Reduce, Work
from weft.solver.problem import Block, Dependency, Device, Problem
from weft.solver.schedule import Operation, Schedule
from weft.solver.wide.block import WideBlock
from weft.solver.wide.rounds import Rounds

__all__ = ["JobPlan", "Key", "Sum", "job_plans", "orders_of"]

#: A block in the common order: its job, its name, and which of the job's steps it is of.
Key = tuple[str, str, int]


@dataclass(frozen=True)
class Sum:
    """A block ``name`` that sums gradients: behind ``needs``, the blocks that compute before it."""

    name: str
    needs: frozenset[str]


@dataclass(frozen=True)
class JobPlan:
    """A job's part: ``plan`` is one step on one rank, ``blocks`` says what the plan with jobs calls each of its passes.

    ``sums``: in their order in a step. ``steps``: how many the plan with jobs has of it. ``durations``: of its blocks
    by name, in the plan's time unit.
    """

    name: str
    plan: Plan
    blocks: Mapping[Work, str]
    sums: tuple[Sum, ...]
    steps: int
    durations: Mapping[str, float]

    def reduces(self, plan: Plan) -> dict[str, list[Reduce]]:
        """By name of a sum, the REDUCEs of ``plan`` (this job's, with its parameters known) that it makes.

        Raises :class:`~weft.runtime.plan.program.ProgramError` for gradients that no block sums.
        """
        found: dict[str, list[Reduce]] = {entry.name: [] for entry in self.sums}
        graph = plan.vocabulary.graph
        assert graph is not None
        for instruction in plan.program.ranks[0]:
            if not isinstance(instruction, Reduce):
                continue
            behind = {plan.problem.blocks[block].name for block in graph.contributions(instruction.stages)}
            home = next((entry.name for entry in self.sums if behind <= entry.needs), None)
            if home is None:
                raise ProgramError(f"job {self.name!r}: no block of the plan sums the gradients of "
                                   f"{' and '.join(sorted(behind))}: one on the lanes of all ranks must wait for them")
            found[home].append(instruction)
        return found


def job_plans(plan: Plan) -> tuple[JobPlan, ...]:
    """The jobs of ``plan``, each as its own training.

    Raises :class:`~weft.runtime.plan.program.ProgramError` for a plan without several jobs, and for a job that can be
    emulated among others but not trained, with the block that is in the way.
    """
    rounds = plan.rounds
    if rounds is None or len(rounds.wide.jobs) < 2:
        raise ProgramError(f"the plan of {plan.problem.name!r} has no jobs that share its ranks: it is one training")
    return tuple(_job_plan(plan, rounds, job) for job in rounds.wide.jobs)


def orders_of(plan: Plan, rank: int) -> dict[int, list[Key]]:
    """Per device and lane of ``rank``, its blocks in the common order."""
    found: dict[int, list[Key]] = {}
    for work in plan.program.works(rank):
        assert isinstance(work, BlockWork) and plan.rounds is not None
        block = plan.vocabulary.block(work)
        assert block is not None  # the plan's program has been checked
        job = plan.rounds.wide.blocks[plan.rounds.number[work.block]].job
        assert job is not None
        for device in plan.vocabulary.ranks.held(rank, block):
            found.setdefault(device, []).append((job, work.block, work.micro_batch))
    return found


def _job_plan(plan: Plan, rounds: Rounds, job: str) -> JobPlan:
    own = [block for block in rounds.wide.blocks if block.job == job]
    computing = [block for block in own if _computes(plan, job, block)]
    names = {block.name for block in computing}
    sums = [block for block in own if block.name not in names]
    _require_nothing_behind_sums(job, computing, names)
    problem = _alone(job, computing, names, rounds)
    order = _order(plan, job, [block.name for block in computing])
    operations = []
    for name in order:
        start, end = plan.times[BlockWork(name, 0)]
        operations.append(Operation(problem.index[name], 0, start, end))
    try:
        alone = plan_of(Schedule(problem, 1, tuple(operations), 0.0))
    except ProgramError as error:
        raise ProgramError(f"job {job!r}: {error}") from None
    if alone.why_not_trained is not None:
        raise ProgramError(f"job {job!r}: {alone.why_not_trained}")
    blocks = {alone.vocabulary.work(number, 0): block.name for number, block in enumerate(problem.blocks)}
    before = _before(own)
    listed = [Sum(name, frozenset(before[name] & names)) for name in _order(plan, job, [block.name for block in sums])]
    durations: dict[str, float] = {}
    for block in own:
        assert not isinstance(block.duration, Mapping)
        durations[block.name] = block.duration
    return JobPlan(job, alone, blocks, tuple(listed), len(rounds.run.classes[job]), durations)


def _computes(plan: Plan, job: str, block: WideBlock) -> bool:
    """Whether the block computes on all ranks; False for one on lanes of all ranks alone."""
    devices, ranks = plan.problem.devices, plan.vocabulary.ranks
    gpus = [d for d in block.devices if devices[d].lane_of is None]
    on = ranks.of_block(_plain(plan, block))
    if len(on) < len(plan.program.ranks) or (gpus and len(gpus) < len(block.devices)):
        where = ", ".join(devices[d].name for d in block.devices)
        raise ProgramError(f"job {job!r}: block {block.name!r} is on {where}, and jobs that share ranks are trained "
                           "data parallel, each block on all GPUs or on a lane of each; use --emulate")
    return bool(gpus)


def _plain(plan: Plan, block: WideBlock) -> int:
    assert plan.rounds is not None
    return plan.rounds.joined(plan.rounds.number[block.name], 0)[0]


def _require_nothing_behind_sums(job: str, computing: Sequence[WideBlock], names: set[str]) -> None:
    for block in computing:
        for wait in block.after:
            if wait.distance == 0 and wait.block not in names:
                raise ProgramError(f"job {job!r}: block {block.name!r} waits for {wait.block!r} of the same step, a "
                                   "communication inside it, which data parallel training has not; use --emulate")


def _alone(job: str, computing: Sequence[WideBlock], names: set[str], rounds: Rounds) -> Problem:
    """What the job computes, on one device."""
    blocks = []
    for block in computing:
        plain = block.of_class(None)
        blocks.append(Block(block.name, block.kind, (0,), plain.duration, after=tuple(
            Dependency(wait.block) for wait in plain.after if wait.distance == 0 and wait.block in names)))
    return Problem(job, (Device("all ranks"),), tuple(blocks), time_unit=rounds.wide.time_unit)


def _order(plan: Plan, job: str, names: Sequence[str]) -> list[str]:
    """``names`` in the order of every step, on every rank."""
    wanted, found = set(names), None
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
