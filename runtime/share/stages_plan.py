"""The jobs of a plan as plans of their own, and the common order of their blocks.

:func:`job_plans` determines the kind of each job. A job with blocks on lanes alone sums gradients there and is trained
*data parallel*: a plan of one rank, with a replica on each of its ranks. Any other job is a graph of *stages*: a
pipeline that trains or infers, or a tensor-parallel group.

A job of stages has the blocks of the plan with jobs, in the same order on every rank, at the same times. Its
micro-batches in one lap are one batch: the optimizer steps between laps, and nothing of the next lap starts before.

Each computing block of a data parallel job is on all its GPUs, and sums of gradients are on their lanes (as
:mod:`weft.models.share.data_parallel` makes them). Each sum runs the REDUCEs of the job's own plan that follow the
backwards it waits for. A block of kind ``other`` before the forwards represents the passes of all micro-batches of a
step except the last, whose gradients are accumulated before anything is summed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft.runtime.plan.plan import Plan, plan_of
from weft.runtime.plan.program import BlockWork, ProgramError, Reduce, Work
from weft.solver.late import nx
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem
from weft.solver.problem.rounds import Rounds
from weft.solver.schedule import Operation, Schedule


def stages_plan(plan: Plan, rounds: Rounds, job: str, blocks: Sequence[Block]) -> JobPlan:
    """The plan of a job of stages: ``blocks`` of ``job``, on the ranks that run any of them.

    Raises :class:`~weft.runtime.plan.program.ProgramError` for blocks that are not stages.
    """
    problem = _alone(plan, rounds, job, blocks)
    count = len(rounds.run.classes[job])
    operations = tuple(Operation(problem.index[block.name], number, *plan.times[BlockWork(block.name, number)])
                       for block in blocks for number in range(count))
    try:
        alone = plan_of(Schedule(problem, count, operations, 0.0))
    except ProgramError as error:
        raise ProgramError(f"job {job!r}: {error}") from None
    if alone.why_not_trained is not None:
        raise ProgramError(f"job {job!r}: {alone.why_not_trained}; jobs that share ranks run as stages on GPUs, or "
                           "data parallel: each block on all GPUs of the job, and sums on a lane of each")
    passes = {alone.vocabulary.work(number, m): (block.name, m)
              for number, block in enumerate(problem.blocks) for m in range(count)}
    names = {plan.problem.devices[device].name: rank for rank, device in enumerate(plan.vocabulary.ranks.devices)}
    everything = frozenset(passes)
    return JobPlan(job, alone, tuple(names[device.name] for device in problem.devices), 1, passes, everything,
                   everything, (), 1, count, durations_of(blocks))


def _alone(plan: Plan, rounds: Rounds, job: str, blocks: Sequence[Block]) -> Problem:
    """The job's blocks as a problem, with the devices that they use."""
    used = sorted({device for block in blocks for device in block.devices})
    place = {device: number for number, device in enumerate(used)}
    devices = plan.problem.devices
    for block in blocks:
        lane = next((devices[d] for d in block.devices if devices[d].lane_of is not None), None)
        if lane is not None:
            raise ProgramError(f"job {job!r}: block {block.name!r} is on {lane.name}, a lane of {lane.lane_of}, beside "
                               "a GPU: a block of a job that is trained computes on GPUs, or sums on lanes alone; use "
                               "--emulate")
    plain = [block.of_class(None) for block in blocks]
    links = tuple(replace(link, source=place[link.source], target=place[link.target]) for link in rounds.origin.links
                  if link.source in place and link.target in place)
    return Problem(job, tuple(devices[device] for device in used),
                   tuple(replace(block, devices=tuple(place[d] for d in block.devices)) for block in plain), links,
                   rounds.origin.time_unit, rounds.origin.memory_unit)


def job_plans(plan: Plan) -> tuple[JobPlan, ...]:
    """The plan of each job of ``plan``.

    Raises :class:`~weft.runtime.plan.program.ProgramError` for a plan without several jobs, and for a job that can be
    emulated but not run, with the block that prevents it.
    """
    rounds = plan.rounds
    if rounds is None or len(rounds.origin.jobs) < 2:
        raise ProgramError(f"the plan of {plan.problem.name!r} has no jobs that share its ranks: it is one training")
    devices = plan.problem.devices
    found = []
    for job in rounds.origin.jobs:
        own = [block for block in rounds.origin.blocks if block.job == job]
        on_lanes = any(all(devices[d].lane_of is not None for d in block.devices) for block in own)
        found.append((data_parallel_plan if on_lanes else stages_plan)(plan, rounds, job, own))
    return tuple(found)


def data_parallel_plan(plan: Plan, rounds: Rounds, job: str, blocks: Sequence[Block]) -> JobPlan:
    """The plan of a data parallel job, whose step consists of ``blocks``.

    Raises :class:`~weft.runtime.plan.program.ProgramError` for blocks that are not such a training.
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
    return JobPlan(job, alone, tuple(ranks), len(ranks), passes, frozenset(first_of.values()),
                   frozenset(last_of.values()), listed, len(rounds.run.classes[job]), 1,
                   durations_of(blocks))


def _computes(plan: Plan, job: str, block: Block, ranks: Sequence[int]) -> bool:
    """Whether the block is on all GPUs of the job's ``ranks``; False if it is on a lane of each. Raises
    :class:`~weft.runtime.plan.program.ProgramError` for any other block."""
    devices = plan.problem.devices
    gpus = [d for d in block.devices if devices[d].lane_of is None]
    if len(_ranks(plan, block)) < len(ranks) or (gpus and len(gpus) < len(block.devices)):
        where = ", ".join(devices[d].name for d in block.devices)
        raise ProgramError(f"job {job!r}: block {block.name!r} is on {where}, and jobs that share ranks are trained "
                           "data parallel, each block on all GPUs or on a lane of each, or as stages without lanes; "
                           "use --emulate")
    return bool(gpus)


def _ranks(plan: Plan, block: Block) -> tuple[int, ...]:
    assert plan.rounds is not None
    return plan.vocabulary.ranks.of_block(plan.rounds.joined(plan.rounds.origin.index[block.name], 0)[0])


def _require_nothing_behind_sums(job: str, computing: Sequence[Block], names: set[str]) -> None:
    for block in computing:
        for wait in block.after:
            if wait.distance == 0 and wait.block not in names:
                raise ProgramError(f"job {job!r}: block {block.name!r} waits for {wait.block!r} of the same step, a "
                                   "communication inside it, which data parallel training has not; use --emulate")


def _accumulating(plan: Plan, job: str, computing: Sequence[Block]) -> tuple[Block | None, int]:
    """The block of all micro-batches of a step except the last (or ``None``), and the number of micro-batches."""
    share: Any = plan.solver.get("share")
    jobs = share.get("jobs", ()) if isinstance(share, Mapping) else ()
    count = next((entry.get("micro_batches", 1) for entry in jobs if entry.get("name") == job), 1)
    others = [block for block in computing if block.kind == BlockKind.OTHER
              and not any(wait.distance == 0 for wait in block.after)]
    if type(count) is not int or count < 2 or len(others) != 1:
        return None, 1
    return others[0], count


def _alone_plan(plan: Plan, rounds: Rounds, job: str, passing: Sequence[Block], count: int) -> Plan:
    """The plan of a step on one device: ``count`` micro-batches in sequence, each in the order of the plan."""
    names = {block.name for block in passing}
    blocks = []
    for block in passing:
        blocks.append(Block(block.name, block.kind, (0,), block.duration, after=tuple(
            Dependency(wait.block) for wait in block.after if wait.distance == 0 and wait.block in names)))
    problem = Problem(job, (Device("all ranks"),), tuple(blocks), time_unit=rounds.origin.time_unit)
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
    """``names`` in their order, which must be the same in every step and on every rank."""
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


def _before(blocks: Sequence[Block]) -> dict[str, set[str]]:
    """For each block, the blocks of the same step that end before it starts."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(block.name for block in blocks)
    graph.add_edges_from((wait.block, block.name) for block in blocks for wait in block.after if wait.distance == 0)
    return {block.name: nx.ancestors(graph, block.name) for block in blocks}


#: A block in the common order: its job, its name, and its micro-batch of the job.
Key = tuple[str, str, int]


@dataclass(frozen=True)
class Sum:
    """A block ``name`` that sums gradients. ``needs``: the computing blocks before it."""

    name: str
    needs: frozenset[str]


@dataclass(frozen=True)
class JobPlan:
    """A job's own plan: ``plan`` is one batch, in ``replicas`` copies on ``ranks`` of the plan with jobs.

    ``blocks``: for each pass, its block in the plan with jobs, and its micro-batch within a batch. ``opens`` and
    ``closes``: the first and the last passes of these blocks. ``sums``: in their order in a batch. ``batches``: in a
    lap of the plan with jobs, each of ``size`` micro-batches of that plan. ``durations``: of blocks by name, in the
    plan's time unit.
    """

    name: str
    plan: Plan
    ranks: tuple[int, ...]
    replicas: int
    blocks: Mapping[Work, tuple[str, int]]
    opens: frozenset[Work]
    closes: frozenset[Work]
    sums: tuple[Sum, ...]
    batches: int
    size: int
    durations: Mapping[str, float]

    @property
    def data_parallel(self) -> bool:
        """Whether each rank has a replica of the job, and separate blocks sum gradients."""
        return bool(self.sums)

    @property
    def trains(self) -> bool:
        """Whether it has a backward, and so losses."""
        graph = self.plan.vocabulary.graph
        return graph is not None and graph.has_backward

    def reduces(self, plan: Plan) -> dict[str, list[Reduce]]:
        """The REDUCEs of ``plan`` (this job's, with its parameters known) that each sum runs, by its name.

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


def durations_of(blocks: Sequence[Block]) -> dict[str, float]:
    """The duration of each of a job's blocks, by name; jobs have no classes."""
    return {block.name: block.duration for block in blocks}


def orders_of(plan: Plan, rank: int) -> dict[int, list[Key]]:
    """The blocks of each device and lane of ``rank``, in the common order."""
    found: dict[int, list[Key]] = {}
    for work, key in keys_of(plan, rank):
        for device in plan.vocabulary.ranks.held(rank, plan.vocabulary.known(work)[0]):
            found.setdefault(device, []).append(key)
    return found


def keys_of(plan: Plan, rank: int) -> Sequence[tuple[BlockWork, Key]]:
    """The blocks of all jobs that ``rank`` runs, in its order."""
    found = []
    assert plan.rounds is not None
    for work in plan.program.works(rank):
        assert isinstance(work, BlockWork)
        job = plan.rounds.origin.blocks[plan.rounds.origin.index[work.block]].job
        assert job is not None
        found.append((work, (job, work.block, work.micro_batch)))
    return found
