"""The block problem of a cut's stages on their ranks, and its times as a run of the executor measures them."""

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

#: Values of the optimizer per weight: Adam's two moments.
OPTIMIZER_COPIES = 2
#: On an idle machine the fastest of several equal steps is shorter than their median by at most this share.
QUIET = 0.1


def resident_bytes(costs: Sequence[StageCosts], ranks: int, micro_batches: int,
                   copies: int = OPTIMIZER_COPIES, open_sends: int = OPEN_SENDS) -> list[int]:
    """Bytes that stay allocated on each rank during a step: weights, gradients, optimizer state (``copies`` times the
    bytes of the weights, with master weights if there are any), buffers, and up to ``open_sends`` messages to other
    ranks."""
    resident = [0] * ranks
    sent: list[list[int]] = [[] for _ in range(ranks)]
    for cost in costs:
        rank = rank_of(cost.stage, len(costs), ranks)
        resident[rank] += static_bytes(costs, cost.stage, optimizer_copies=copies, micro_batches=0)
        for producer in range(cost.stage):
            other = rank_of(producer, len(costs), ranks)
            if other != rank:
                sent[other].append(_passes(costs, producer, cost.stage))
                sent[rank].append(_passes(costs, cost.stage, producer))
    return [own + sum(sorted(messages * micro_batches, reverse=True)[:open_sends])
            for own, messages in zip(resident, sent, strict=True)]


def optimizer_bytes(costs: Sequence[StageCosts], ranks: int, copies: int = OPTIMIZER_COPIES) -> list[int]:
    """Bytes of optimizer state on each rank, a part of :func:`resident_bytes`."""
    found = [0] * ranks
    for cost in costs:
        found[rank_of(cost.stage, len(costs), ranks)] += copies * cost.learning_bytes
    return found


def stage_problem(costs: Sequence[StageCosts], ties: Sequence[tuple[str, Sequence[int]]], machine: Machine,
                  backward: str, micro_batches: int, copies: int = OPTIMIZER_COPIES) -> Problem:
    """The measured stages on ``machine``, one per rank or two in a V, with the transfer times of its links.

    Raises :class:`~weft.runtime.measure.stage_costs.MeasureError` if a rank's memory is below its resident bytes.
    """
    problem = measured_problem(costs, backward=backward, optimizer_copies=copies, name="captured stages", ties=ties)
    count, ranks = len(costs), machine.ranks
    resident = resident_bytes(costs, ranks, micro_batches, copies)
    devices = []
    for rank, amount in enumerate(machine.memory):
        if amount is not None and resident[rank] >= amount:
            raise MeasureError(f"rank {rank} needs {resident[rank]} bytes for weights, gradients, optimizer and "
                               f"messages, but it has {amount}: start more ranks, or give more memory")
        devices.append(Device(f"rank{rank}", None if amount is None else amount - resident[rank],
                              static=resident[rank]))
    blocks = []
    for block in problem.blocks:
        stage, = block.devices
        rank = rank_of(stage, count, ranks)
        change, workspace = _message_buffers(costs, problem, block, lambda producer: True)
        blocks.append(replace(block, devices=(rank,), memory=(block.memory[0] + change,),
                              workspace=(block.workspace[0] + workspace,), after=tuple(
            replace(dependency, lag=machine.seconds(_message(costs, problem, block, dependency),
                                                    rank_of(_stage(problem, dependency), count, ranks), rank))
            for dependency in block.after)))
    return replace(problem, devices=tuple(devices), blocks=tuple(blocks))


def peak_bytes(costs: Sequence[StageCosts], schedule: Schedule, resident: Sequence[int], slots: Sequence[int],
               waiting: Sequence[Sequence[tuple[float, int]]] = ()) -> list[int]:
    """Bytes of each rank's peak in ``schedule``.

    ``resident``: bytes that stay allocated; ``slots``: bytes of receive buffers, which replace the message buffers that
    the problem's blocks count (a problem is made before its slots are known, and a message may arrive early);
    ``waiting``: by rank, times and changes in bytes of sent tensors that wait for their receivers.
    """
    problem, ranks = schedule.problem, len(resident)

    def without(block: Block) -> Block:
        change, workspace = _message_buffers(
            costs, problem, block, lambda producer: rank_of(producer, len(costs), ranks) not in block.devices)
        return replace(block, memory=(block.memory[0] - change,), workspace=(block.workspace[0] - workspace,))

    bare = replace(schedule, problem=replace(problem, blocks=tuple(map(without, problem.blocks))))
    found = []
    for rank, own in enumerate(resident):
        profile, waits = bare.memory_profile(rank), waiting[rank] if waiting else ()
        # At equal times: received tensors are freed, blocks free and allocate, their results begin to wait.
        changes = sorted([*((time, 1, level - before) for (_, before), (time, level) in pairwise(profile)),
                          *((time, 2 * (change > 0), change) for time, change in waits)], key=itemgetter(0, 1))
        found.append(int(own + slots[rank] + max(accumulate((change for *_, change in changes), initial=0))))
    return found


def retimed(schedule: Schedule, laps: Iterable[Measured]) -> Schedule:
    """``schedule`` with its blocks at the measured times ``laps`` of the same order."""
    run = {(lap.block, lap.micro_batch): (lap.start, lap.end) for lap in laps}
    return replace(schedule, operations=tuple(Operation(block, micro_batch, *run[
        schedule.problem.blocks[block].name, micro_batch]) for block, micro_batch, *_ in schedule.operations))


def _message_buffers(costs: Sequence[StageCosts], problem: Problem, block: Block,
                     counted: Callable[[int], bool]) -> tuple[int, int]:
    """The change and the workspace in bytes that message buffers add to ``block``. Activations and gradients from the
    ``counted`` stages stay in their buffers until the stage's last pass over the micro-batch."""
    stage, letter = int(block.name[1:]), block.name[0]
    inputs = sum(_passes(costs, before, stage) for before in range(stage) if counted(before))
    gradients = sum(_passes(costs, behind, stage) for behind in range(stage + 1, len(costs)) if counted(behind))
    last = next((each for each in "WBI" if f"{each}{stage}" in problem.index), None)
    if last is None or letter not in "FBIW":
        return 0, inputs if letter == "F" else 0
    if letter == "F":
        return inputs, 0
    if letter == "I" and last == "W":
        return gradients, 0
    return (-inputs - gradients, 0) if letter == "W" else (-inputs, gradients)


def _stage(problem: Problem, dependency: Dependency) -> int:
    """The stage that a block waits for, in a problem of one stage per device."""
    stage, = problem.blocks[problem.index[dependency.block]].devices
    return stage


def _message(costs: Sequence[StageCosts], problem: Problem, block: Block, dependency: Dependency) -> int:
    """Bytes of the message that ``block`` waits for: an activation of an earlier stage or a gradient of a later one."""
    (consumer,), producer = block.devices, _stage(problem, dependency)
    return _passes(costs, producer, consumer)


def _passes(costs: Sequence[StageCosts], producer: int, consumer: int) -> int:
    """Bytes from one stage to another: an activation to a later stage, a gradient to an earlier one."""
    if producer == consumer:
        return 0
    early, late = min(producer, consumer), max(producer, consumer)
    named = costs[late].takes if producer < consumer else costs[late].owes
    if named is None:  # a chain
        return costs[early].output_bytes if late == early + 1 else 0
    return named.get(early, 0)


def loads(problem: Problem, count: int) -> list[float]:
    """Seconds of all passes of each of ``count`` stages over a micro-batch."""
    found = [0.0] * count
    for block in problem.blocks:
        found[int(block.name[1:])] += block.duration
    return found


@dataclass(frozen=True)
class StagesRun:
    """A schedule of measured stages with the times of its run; ``memory`` is recorded for the first schedule run."""

    schedule: Schedule
    calibration: TimedSteps
    memory: StepMemory | None = None

    @cached_property
    def fitted(self) -> Problem:
        """The problem with the measured times of blocks, messages and the executor's overhead."""
        timelines = self.calibration.timelines
        found = fit(self.schedule.problem, timelines).problem
        return with_gaps(found, executor_gaps(found, timelines))

    @property
    def measured(self) -> float:
        """Seconds of the measured step."""
        return self.calibration.makespan

    @property
    def noise(self) -> float:
        """Relative difference between equal steps."""
        return self.calibration.noise / self.measured

    @property
    def noise_note(self) -> str:
        """A clause for the note if other processes disturbed the measurement; else empty."""
        busy = self.calibration.share
        if self.noise <= QUIET and busy >= 1 - QUIET:
            return ""
        seen = (f"a rank had a core in {busy:.0%} of the time of its blocks" if busy < 1 - QUIET else
                f"the fastest of these steps took {self.noise:.0%} less")
        return (f"; {seen}, so other processes were running: another call measures again and may choose another cut; "
                "plan=pipe.plan keeps this one")

    @cached_property
    def fitted_makespan(self) -> float:
        """Seconds of the step with the median times of blocks and messages."""
        return self.fitted_schedule.makespan

    @property
    def stretch(self) -> float:
        """Measured over fitted makespan. Above 1, as others wait for a rank that takes longer than its median."""
        return self.measured / self.fitted_makespan

    @property
    def fitted_schedule(self) -> Schedule:
        """The same order with the fitted times."""
        return self._timed(self.fitted)

    @cached_property
    def bound(self) -> float:
        """Lower bound in seconds on the makespan of every order of these stages with the median times."""
        return min(least_time(TickProblem.of(self.fitted), self.schedule.micro_batches), self.fitted_makespan)

    def calibrated(self) -> Schedule:
        """The same order with times scaled so that its makespan is the measured one. The bound is scaled too, as it
        holds in any unit of time."""
        found = self._timed(scaled(self.fitted, self.stretch))
        return replace(found, makespan_bound=min(self.stretch * self.bound, found.makespan))

    def _timed(self, problem: Problem) -> Schedule:
        n = self.schedule.micro_batches
        return replace(self.schedule, problem=problem, operations=time_orders(problem, n, self.schedule.orders),
                       makespan_bound=0.0, period=None, period_bound=None, repetend=None)


def least(runs: Sequence[StagesRun]) -> StagesRun:
    """The first run that is as fast as the fastest one within the noise of equal steps."""
    best = min(runs, key=lambda run: run.measured)
    return next(run for run in runs
                if run.measured <= best.measured + max(run.calibration.noise, best.calibration.noise))


def scaled(problem: Problem, factor: float) -> Problem:
    """``problem`` with all durations and lags multiplied by ``factor``."""
    return replace(problem, blocks=tuple(replace(
        block, duration=block.duration * factor, after=tuple(replace(dependency, lag=dependency.lag * factor)
                                                             for dependency in block.after))
                                         for block in problem.blocks))
