"""The block problem of a cut's stages on their ranks, and what a run of the executor makes of its times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from operator import itemgetter

from weft.app.pipeline.planning.machine import Machine
from weft.app.pipeline.planning.row import rank_of
from weft.runtime.measure.fitting import executor_gaps, fit, with_gaps
from weft.runtime.measure.stage_costs import MeasureError, StageCosts, measured_problem, static_bytes
from weft.runtime.plan.buffers import OPEN_SENDS
from weft.runtime.plan.timeline import Measured
from weft.runtime.replay.planned_steps import StepMemory, TimedSteps
from weft.solver.bounds.makespan import least_time
from weft.solver.problem import Block, Dependency, Device, Problem
from weft.solver.schedule import Operation, Schedule
from weft.solver.ticks import TickProblem
from weft.solver.timing import time_orders

#: An optimizer's values for each weight: Adam's.
OPTIMIZER_COPIES = 2
#: Up to which share of a step the quickest of equal steps takes less on a machine that has nothing else to do.
QUIET = 0.1


def held_bytes(costs: Sequence[StageCosts], ranks: int, micro_batches: int,
               copies: int = OPTIMIZER_COPIES, under_way: int = OPEN_SENDS) -> list[int]:
    """Bytes that each rank holds all the time: weights, gradients, an optimizer's two values (``copies`` of a weight's
    size, with masters and theirs), buffers, and up to ``under_way`` messages to other ranks."""
    held = [0] * ranks
    sent: list[list[int]] = [[] for _ in range(ranks)]
    for cost in costs:
        rank = rank_of(cost.stage, len(costs), ranks)
        held[rank] += static_bytes(costs, cost.stage, optimizer_copies=copies, micro_batches=0)
        for giver in range(cost.stage):
            other = rank_of(giver, len(costs), ranks)
            if other != rank:
                sent[other].append(_passes(costs, giver, cost.stage))
                sent[rank].append(_passes(costs, cost.stage, giver))
    return [own + sum(sorted(messages * micro_batches, reverse=True)[:under_way])
            for own, messages in zip(held, sent, strict=True)]


def optimizer_bytes(costs: Sequence[StageCosts], ranks: int, copies: int = OPTIMIZER_COPIES) -> list[int]:
    """Of these, the optimizer's."""
    held = [0] * ranks
    for cost in costs:
        held[rank_of(cost.stage, len(costs), ranks)] += copies * cost.learning_bytes
    return held


def stage_problem(costs: Sequence[StageCosts], ties: Sequence[tuple[str, Sequence[int]]], machine: Machine,
                  backward: str, micro_batches: int, copies: int = OPTIMIZER_COPIES) -> Problem:
    """The stages as measured, on ``machine``: one a rank, or two in a V; messages take what its links take.

    Raises :class:`~weft.runtime.measure.stage_costs.MeasureError` where a rank has too little for what is always there.
    """
    problem = measured_problem(costs, backward=backward, optimizer_copies=copies, name="captured stages", ties=ties)
    count, ranks = len(costs), machine.ranks
    held = held_bytes(costs, ranks, micro_batches, copies)
    devices = []
    for rank, amount in enumerate(machine.memory):
        if amount is not None and held[rank] >= amount:
            raise MeasureError(f"rank {rank} needs {held[rank]} bytes for weights, gradients, optimizer and messages, "
                               f"but it has {amount}: start more ranks, or give more memory")
        devices.append(Device(f"rank{rank}", None if amount is None else amount - held[rank], static=held[rank]))
    blocks = []
    for block in problem.blocks:
        stage, = block.devices
        rank = rank_of(stage, count, ranks)
        change, workspace = _lying(costs, problem, block, lambda giver: True)
        blocks.append(replace(block, devices=(rank,), memory=(block.memory[0] + change,),
                              workspace=(block.workspace[0] + workspace,), after=tuple(
            replace(dependency, lag=machine.seconds(_message(costs, problem, block, dependency),
                                                    rank_of(_stage(problem, dependency), count, ranks), rank))
            for dependency in block.after)))
    return replace(problem, devices=tuple(devices), blocks=tuple(blocks))


def peak_bytes(costs: Sequence[StageCosts], schedule: Schedule, held: Sequence[int], slots: Sequence[int],
               waiting: Sequence[Sequence[tuple[float, int]]] = ()) -> list[int]:
    """The most that each rank holds in ``schedule``, by the bytes of its ``slots`` in place of the messages that blocks
    have been counted with, with what is ``held`` all the time, and with results ``waiting`` for their receivers, by the
    moments of changes. (When a plan is made, the slots are not known yet: a message may come early.)"""
    problem, ranks = schedule.problem, len(held)

    def without(block: Block) -> Block:
        change, workspace = _lying(costs, problem, block, lambda giver: rank_of(giver, len(costs), ranks) not in
                                   block.devices)
        return replace(block, memory=(block.memory[0] - change,), workspace=(block.workspace[0] - workspace,))

    bare = replace(schedule, problem=replace(problem, blocks=tuple(map(without, problem.blocks))))
    found = []
    for rank, own in enumerate(held):
        profile, waits = bare.memory_profile(rank), waiting[rank] if waiting else ()
        # At one moment first what waits goes, then blocks give and take, then what they gave waits.
        changes = sorted([*((time, 1, level - before) for (_, before), (time, level) in pairwise(profile)),
                          *((time, 2 * (change > 0), change) for time, change in waits)], key=itemgetter(0, 1))
        found.append(int(own + slots[rank] + max(accumulate((change for *_, change in changes), initial=0))))
    return found


def retimed(schedule: Schedule, laps: Iterable[Measured]) -> Schedule:
    """``schedule`` with its blocks at ``laps``, which have its order."""
    run = {(lap.block, lap.micro_batch): (lap.start, lap.end) for lap in laps}
    return replace(schedule, operations=tuple(Operation(block, micro_batch, *run[
        schedule.problem.blocks[block].name, micro_batch]) for block, micro_batch, *_ in schedule.operations))


def _lying(costs: Sequence[StageCosts], problem: Problem, block: Block,
           counted: Callable[[int], bool]) -> tuple[int, int]:
    """By how many bytes ``block`` changes what lies there for its stage, and what lies there for it alone: what the
    stage is given by stages that are ``counted``, activations and gradients, stays in its place until its last pass
    over the micro-batch."""
    stage, letter = int(block.name[1:]), block.name[0]
    taken = sum(_passes(costs, giver, stage) for giver in range(stage) if counted(giver))
    owed = sum(_passes(costs, taker, stage) for taker in range(stage + 1, len(costs)) if counted(taker))
    last = next((each for each in "WBI" if f"{each}{stage}" in problem.index), None)
    if last is None or letter not in "FBIW":
        return 0, taken if letter == "F" else 0
    if letter == "F":
        return taken, 0
    if letter == "I" and last == "W":
        return owed, 0
    return (-taken - owed, 0) if letter == "W" else (-taken, owed)


def _stage(problem: Problem, dependency: Dependency) -> int:
    """The stage of what is waited for, in a problem of one stage a device."""
    stage, = problem.blocks[problem.index[dependency.block]].devices
    return stage


def _message(costs: Sequence[StageCosts], problem: Problem, block: Block, dependency: Dependency) -> int:
    """Bytes that come with what ``block`` waits for: an activation from an earlier stage, a gradient from a later."""
    (taker,), giver = block.devices, _stage(problem, dependency)
    return _passes(costs, giver, taker)


def _passes(costs: Sequence[StageCosts], giver: int, taker: int) -> int:
    """Bytes that pass from one stage to another: an activation to a later one, a gradient to an earlier one."""
    if giver == taker:
        return 0
    early, late = min(giver, taker), max(giver, taker)
    named = costs[late].takes if giver < taker else costs[late].owes
    if named is None:  # a chain
        return costs[early].output_bytes if late == early + 1 else 0
    return named.get(early, 0)


def loads(problem: Problem, count: int) -> list[float]:
    """Seconds that each of ``count`` stages takes for a micro-batch, in all its passes."""
    found = [0.0] * count
    for block in problem.blocks:
        found[int(block.name[1:])] += block.duration
    return found


@dataclass(frozen=True)
class StagesRun:
    """A schedule of stages that have been measured, and what running it came to. ``memory``: of the first to be run."""

    schedule: Schedule
    calibration: TimedSteps
    memory: StepMemory | None = None

    @cached_property
    def fitted(self) -> Problem:
        """Its problem with what blocks, messages and the executor between them took."""
        timelines = self.calibration.timelines
        found = fit(self.schedule.problem, timelines).problem
        return with_gaps(found, executor_gaps(found, timelines))

    @property
    def measured(self) -> float:
        """Seconds that the step took."""
        return self.calibration.makespan

    @property
    def noise(self) -> float:
        """The share of it that equal steps differ by."""
        return self.calibration.noise / self.measured

    @property
    def unrest(self) -> str:
        """What is said where the machine did other work meanwhile; else nothing."""
        busy = self.calibration.share
        if self.noise <= QUIET and busy >= 1 - QUIET:
            return ""
        seen = (f"a rank computed in {busy:.0%} of the time of its blocks" if busy < 1 - QUIET else
                f"the quickest of these steps took {self.noise:.0%} less")
        return (f"; {seen}, as on a machine that has other work: another call measures anew, and may find another cut; "
                "plan=pipe.plan keeps this one")

    @cached_property
    def alone(self) -> float:
        """Seconds that the step would take if blocks and messages always took their medians."""
        return self.plain.makespan

    @property
    def factor(self) -> float:
        """What the step took over that: where one rank takes longer than its median, others wait."""
        return self.measured / self.alone

    @property
    def plain(self) -> Schedule:
        """The same order with the times that were fitted."""
        return self._timed(self.fitted)

    @cached_property
    def bound(self) -> float:
        """What no order of these stages on these ranks goes below, if blocks and messages take their medians."""
        return min(least_time(TickProblem.of(self.fitted), self.schedule.micro_batches), self.alone)

    def settled(self) -> Schedule:
        """The same order with times under which the step takes what it was measured to take. The bound is stretched
        with them: what holds of all orders holds in any unit of time."""
        found = self._timed(scaled(self.fitted, self.factor))
        return replace(found, makespan_bound=min(self.factor * self.bound, found.makespan))

    def _timed(self, problem: Problem) -> Schedule:
        n = self.schedule.micro_batches
        return replace(self.schedule, problem=problem, operations=time_orders(problem, n, self.schedule.orders),
                       makespan_bound=0.0, period=None, period_bound=None, repetend=None)


def least(runs: Sequence[StagesRun]) -> StagesRun:
    """The first that took no longer than the quickest, up to what steps of one and the same schedule differ by."""
    best = min(runs, key=lambda run: run.measured)
    return next(run for run in runs
                if run.measured <= best.measured + max(run.calibration.noise, best.calibration.noise))


def scaled(problem: Problem, factor: float) -> Problem:
    """``problem`` where everything takes ``factor`` times as long."""
    return replace(problem, blocks=tuple(replace(
        block, duration=block.duration * factor, after=tuple(replace(dependency, lag=dependency.lag * factor)
                                                             for dependency in block.after))
        for block in problem.blocks))
