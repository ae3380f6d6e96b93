"""A graph of stages as a block problem, and 1F1B on it: the time and memory of a step, for the judge to check.

Every stage has devices of its own, a forward and, in training, a backward. A block of a replicated stage is on all of
them at once, each with its part of the micro-batch. Their all-reduce comes once a step; a block problem, which repeats
all it has, spreads it over the backwards. Stages may run micro-batches of different sizes: the
problem's micro-batch is then the largest of them, a *round*, and a stage with a smaller one has several blocks in it,
which wait for those blocks of other stages that hold their samples. A stage's blocks of one kind run in the order of
their samples, within a round and from one to the next. That loses no schedule: let any schedule's k-th forward of a
stage be that of its k-th samples, and likewise backwards. When the k-th block of a stage starts, k blocks have had
their samples from every other stage that they wait for, so of that one there have run as many as the first k samples
need. What is held depends on how many have run alone. What a stage sends and receives counts in its blocks, as it
does in a placement's loads; so no step is shorter than the largest load times the number of micro-batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from weft.solver.judge.validate import validate
from weft.solver.placement.dag.in_flight import in_flight_samples
from weft.solver.placement.problem import PlacementError
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem
from weft.solver.schedule import Schedule
from weft.solver.timing import time_orders


@dataclass(frozen=True, slots=True)
class StageLoad:
    """The work of a stage for one micro-batch of its own: seconds (or any unit) of its passes, memory kept from one to
    the other, samples; ``memory``, its device's memory for that (``None``: unlimited), beside the ``static`` memory
    always in use; and its number of ``devices``, each of which takes that time and has that memory."""

    forward: float
    backward: float
    kept: float = 0.0
    micro_batch: int = 1
    memory: float | None = None
    devices: int = 1
    static: float = 0.0


def stage_problem(name: str, works: Sequence[StageLoad], after: Sequence[Sequence[int]], *, time_unit: str = "s",
                  memory_unit: str = "B") -> Problem:
    """The block problem of stages that follow each other by ``after`` (per stage those that directly follow it).

    Blocks are ``F<stage>`` and ``B<stage>``, with ``.<i>`` behind where a stage runs several in a micro-batch; where no
    stage has a backward there are forwards only. Devices are numbered by stage. Raises
    :class:`~weft.solver.placement.problem.PlacementError` where sizes of micro-batches do not divide the largest.
    """
    unit = max(work.micro_batch for work in works)
    for stage, work in enumerate(works):
        if unit % work.micro_batch:
            raise PlacementError(f"stage {stage} runs micro-batches of {work.micro_batch} samples, which do not divide "
                                 f"the largest, {unit}")
    before: list[list[int]] = [[] for _ in works]
    for stage, following in enumerate(after):
        for other in following:
            before[other].append(stage)
    first = [0, *itertools.accumulate(work.devices for work in works)]
    trains = any(work.backward for work in works)
    blocks = []
    for kind, waited in ((BlockKind.FORWARD, before), (BlockKind.BACKWARD, after))[:1 + trains]:
        for stage, work in enumerate(works):
            for i in range(unit // work.micro_batch):
                waits = [Dependency(name_) for other in waited[stage]
                         for name_ in _overlapping(kind, other, works[other], i, work, unit)]
                if work.micro_batch < unit:  # one round's last is before the next one's first
                    earlier = i - 1 if i else unit // work.micro_batch - 1
                    waits.append(Dependency(_name(kind, stage, earlier, work, unit), distance=0 if i else 1))
                if kind == BlockKind.BACKWARD:
                    waits.append(Dependency(_name(BlockKind.FORWARD, stage, i, work, unit)))
                seconds, change = ((work.forward, work.kept if trains else 0.0) if kind == BlockKind.FORWARD
                                   else (work.backward, -work.kept))
                blocks.append(Block(_name(kind, stage, i, work, unit), kind,
                                    tuple(range(first[stage], first[stage + 1])), seconds, (change,), (),
                                    tuple(waits)))
    devices = tuple(Device(f"gpu{first[stage] + i}", work.memory, work.static) for stage, work in enumerate(works)
                    for i in range(work.devices))
    return Problem(name, devices, tuple(blocks), time_unit=time_unit, memory_unit=memory_unit)


def one_f_one_b(problem: Problem, works: Sequence[StageLoad], after: Sequence[Sequence[int]],
                micro_batches: int, most: Sequence[float] | None = None) -> Schedule:
    """1F1B on a graph of stages: each runs as many forwards ahead as the rule of what is in flight says
    (:mod:`weft.solver.placement.dag.in_flight`), then a backward and a forward alternately. Checked by the judge, with
    memory.

    ``micro_batches``: of the problem; ``most``: no stage runs more samples ahead. Raises
    :class:`~weft.solver.InvalidSchedule` where it does not fit.
    """
    held = in_flight_samples(after, [work.micro_batch for work in works])
    if most is not None:
        held = tuple(int(min(samples, limit)) for samples, limit in zip(held, most, strict=True))
    schedule = Schedule(problem, micro_batches, time_orders(problem, micro_batches, _alternating_orders(
        problem, works, held, micro_batches)), makespan_bound=0.0, solver={"name": "1f1b on stages"})
    validate(schedule)
    return schedule


def _alternating_orders(problem: Problem, works: Sequence[StageLoad], held: Sequence[int],
                       micro_batches: int) -> list[list[tuple[int, int]]]:
    """Per device: forwards of as many samples as its stage has ``held``, then a backward and a forward alternately;
    where no stage has a backward, its forwards."""
    unit, trains = max(work.micro_batch for work in works), any(work.backward for work in works)
    orders: list[list[tuple[int, int]]] = []
    for stage, work in enumerate(works):
        parts = unit // work.micro_batch
        count = parts * micro_batches
        forwards = [(problem.index[_name(BlockKind.FORWARD, stage, i % parts, work, unit)], i // parts)
                    for i in range(count)]
        backwards = [(problem.index[_name(BlockKind.BACKWARD, stage, i % parts, work, unit)], i // parts)
                     for i in range(count)] if trains else []
        ahead = min(count, held[stage] // work.micro_batch) if trains else count
        order = forwards[:ahead]
        for i, backward in enumerate(backwards):
            order.append(backward)
            order += forwards[ahead + i:ahead + i + 1]
        orders += [order] * work.devices
    return orders


def _name(kind: BlockKind, stage: int, i: int, work: StageLoad, unit: int) -> str:
    return f"{kind.letter}{stage}" + (f".{i}" if work.micro_batch < unit else "")


def _overlapping(kind: BlockKind, other: int, its: StageLoad, i: int, work: StageLoad, unit: int) -> list[str]:
    """The blocks of stage ``other`` with samples of block ``i`` of a stage that does ``work``."""
    first, last = i * work.micro_batch // its.micro_batch, ((i + 1) * work.micro_batch - 1) // its.micro_batch
    return [_name(kind, other, j, its, unit) for j in range(first, last + 1)]
