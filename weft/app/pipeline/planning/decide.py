"""What all ranks run: where the model is cut, what its stages cost, and the schedule. All measure, rank 0 decides.

Cuts are proposed on the times of single operators (:mod:`weft.app.pipeline.planning.row`). One after another, the best
of them are measured stage by stage, scheduled, and run for a few steps by the executor itself
(:mod:`weft.runtime.replay.calibration`): what blocks, messages and the executor took then, with neighbours at work, are
the costs of the plan, by which further cuts are proposed and the last search is made. A cut under which no schedule
fits the memory makes way for another one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from weft.app.lib.judged import judged
from weft.app.pipeline.lib.options import PipelineOptions
from weft.app.pipeline.lib.precision import copies_of_weights
from weft.app.pipeline.lib.split import Model, divided, fixed_places, stage_counts
from weft.app.pipeline.planning.frozen import published
from weft.app.pipeline.planning.machine import Machine, look_at
from weft.app.pipeline.planning.measuring import Example, Ranks
from weft.app.pipeline.planning.memory.planned import (
    Attempt,
    asked_decisions,
    memory_notes,
    memory_planned,
    plan_with,
    plans_memory,
)
from weft.app.pipeline.planning.problems import Run, held_bytes, loads, optimizer_bytes, peak_bytes, stage_problem
from weft.app.pipeline.planning.row import Row, proposals, rank_of, rough_step
from weft.runtime.captured.captured import CaptureError
from weft.runtime.captured.division import Division, Known
from weft.runtime.captured.loss import LOSS
from weft.runtime.captured.materials import Materials
from weft.runtime.captured.part import Goal
from weft.runtime.captured.purity import Purity
from weft.runtime.measure.measure_stages import measured_ties
from weft.runtime.measure.stage_costs import MeasureError, StageCosts
from weft.runtime.plan.plan import Plan, load_plan, plan_of
from weft.runtime.ranks.session import Session
from weft.runtime.train.stage import deferred_parameters
from weft.solver.baselines import BASELINES, NotApplicable
from weft.solver.feasibility.infeasible import Infeasible
from weft.solver.io.schedule_files import load_schedule
from weft.solver.judge.validate import violations
from weft.solver.problem import BlockKind, Problem
from weft.solver.schedule import Schedule
from weft.solver.step.search import solve

__all__ = ["Decision", "Example", "decide"]

#: Published schedules that need two stages a device, and where they stand: in a V.
IN_A_V = ("zb-v", "zb-v-auto", "v-block")
SHOWN = 4  # names in a sentence
#: Cuts that are measured and run at most, and cuts that are looked at if some leave no schedule that fits.
CUTS, LOOKS = 3, 8
#: A schedule this much longer than the best of its cut is not run.
WORSE = 1.1
#: The share of the time limit that the search has for each schedule of a cut that is tried; the last one has half.
SHARE, LAST = 1 / 8, 1 / 2
#: Steps that running a schedule takes, about.
RUNS = 5
#: By how much another order must promise a shorter step to be run too.
GAIN = 0.995


@dataclass(frozen=True)
class Decision:
    """Where the model is cut, the plan that runs its stages, what was said of it, and the bytes that each rank was
    measured to hold at most (``None``: the plan was given, and not measured)."""

    places: tuple[int, ...]
    plan: Plan
    notes: tuple[str, ...]
    peaks: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Tried:
    """A cut with what its stages cost, and the schedules that were run on it."""

    places: tuple[int, ...]
    costs: Sequence[StageCosts]
    runs: tuple[Run, ...]

    @property
    def best(self) -> Run:
        """The one whose step took least."""
        return min(self.runs, key=lambda run: run.measured)


def decide(captured: Model, purity: Purity | None, example: Example, goal: Goal, session: Session,
           options: PipelineOptions, materials: Materials | None = None) -> Decision:
    """The plan of ``captured`` for the ranks of ``session``, which call it together, and all get the same. Where it is
    on the meta device, stages are given ``materials`` while they are measured.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for a model that cannot be cut so, and what searching
    and measuring raise; what goes wrong on rank 0 is raised there alone.
    """
    ranks = Ranks(captured, purity, example, goal, session, options, materials)
    given = ranks.told_plan(lambda: _given(options, session.world), "reading the plan")
    if given is not None and options.compile and any(block.kind == BlockKind.WEIGHT_GRAD
                                                     for block in given.problem.blocks):
        raise CaptureError("the plan splits backwards, which compiled stages cannot: leave compile out, or give a plan "
                           "with whole backwards")
    ranks = ranks.deciding(asked_decisions(captured, purity, options, given))
    sizes = ranks.sizes()
    machine = look_at(session, options, [int(size) for size in sizes if size is not None], ranks.model_bytes)
    counts = stage_counts(captured, _counts(machine, options, given), machine.ranks)
    row = None if fixed_places(captured, options) is not None else ranks.row(sizes)
    cuts = _Cuts(ranks, machine, row, counts)
    if given is not None:
        places = ranks.told(cuts.following, "cutting the model")
        assert places is not None
        return Decision(places, plan_with(given, ranks.captured), (
            "the plan was given, its costs too", *memory_notes(ranks.captured)))
    while (places := ranks.told(cuts.following, "choosing a cut")) is not None:
        _try(ranks, machine, places, cuts)
    if ranks.told(lambda: not cuts.tried, "choosing a cut"):
        ranks = memory_planned(ranks, machine, lambda own, places: cuts.attempted(_try(own, machine, places, cuts)),
                               cuts.best_attempt)
    return _settled(ranks, machine, cuts)


def _given(options: PipelineOptions, ranks: int) -> Plan | None:
    """The plan that the user has given, held against the ranks."""
    schedule, plan, micro_batches = options.schedule, options.plan, options.micro_batches
    if plan is not None:
        found = plan if isinstance(plan, Plan) else load_plan(plan)
    elif schedule is None or (isinstance(schedule, str) and schedule in BASELINES):
        return None
    else:
        if isinstance(schedule, str) and not os.path.exists(schedule):
            raise CaptureError(f"schedule is {schedule!r}, it must be a schedule, its file, or one of "
                               f"{', '.join(BASELINES)}")
        found = plan_of(judged(schedule if isinstance(schedule, Schedule) else load_schedule(schedule), in_turn=False))
    if len(found.program.ranks) != ranks or found.micro_batches != micro_batches:
        raise CaptureError(f"the plan is for {len(found.program.ranks)} ranks and {found.micro_batches} micro-batches, "
                           f"but there are {ranks} ranks and micro_batches is {micro_batches}: start as many, or plan "
                           "for these")
    if found.stage_ranks is None:
        raise CaptureError("the plan's blocks are no stages on one rank each, which is what a captured model is cut "
                           "into: plan for stages in a row")
    return found


def _counts(machine: Machine, options: PipelineOptions, given: Plan | None) -> tuple[int, ...]:
    """Into how many stages the model may be cut."""
    if given is not None:
        return (len(given.stage_groups or ()),)
    if options.schedule is not None:
        return (2 * machine.ranks if options.schedule in IN_A_V else machine.ranks,)
    return tuple({"chain": machine.ranks, "v": 2 * machine.ranks}[shape] for shape in machine.shapes)


# -- cuts --------------------------------------------------------------------------------------------------------------


class _Cuts:
    """Which cut is looked at next, and what was found of those before; all but :attr:`row` is rank 0's."""

    def __init__(self, ranks: Ranks, machine: Machine, row: Row | None, counts: Sequence[int]) -> None:
        self.ranks, self.machine, self.row, self.counts = ranks, machine, row, counts
        self.options, self.name = ranks.options, type(ranks.captured.model).__name__
        self.begun = time.monotonic()
        self.looked: list[tuple[int, ...]] = []
        self.tried: list[Tried] = []
        self.reason: ValueError | None = None  # why the last cut left no schedule
        self.planning = plans_memory(ranks, machine, counts)
        self.attempts: list[Tried | None] = []
        if row is not None and ranks.session.rank == 0 and any(amount is not None for amount in machine.memory):
            self.row = ranks.kept(row)

    def following(self) -> tuple[int, ...] | None:
        """The cut to be looked at next; ``None`` if that is enough. Raises
        :class:`~weft.runtime.captured.captured.CaptureError` where there is none at all."""
        found = self._next()
        if found is not None:
            self.looked.append(found)
        elif not self.tried and not self.planning:
            raise CaptureError(f"no cut leaves a schedule that fits: {self.reason}") from self.reason
        return found

    def learn(self, tried: Tried) -> None:
        """What the stages of a cut took says more of the row than operators by themselves."""
        self.tried.append(tried)
        if self.row is not None:
            self.row = self.row.scaled(tried.places, loads(tried.best.fitted, len(tried.costs)))

    def attempted(self, costs: Sequence[StageCosts]) -> Attempt:
        """A cut with a memory plan was looked at, whose stages cost ``costs``; and whether a schedule of it ran."""
        self.attempts.append(self.tried.pop() if self.tried else None)
        return costs, self.attempts[-1] is not None

    def best_attempt(self) -> int:
        """Which of these took least, from here on the only one. Raises
        :class:`~weft.runtime.captured.captured.CaptureError` where none leaves a schedule that fits."""
        found = [(tried.best.measured, i) for i, tried in enumerate(self.attempts) if tried is not None]
        if not found:
            raise CaptureError(f"no cut leaves a schedule that fits, whatever operators are recomputed or offloaded: "
                               f"{self.reason}") from self.reason
        number = min(found)[1]
        self.tried = [tried for tried in [self.attempts[number]] if tried is not None]
        return number

    def _next(self) -> tuple[int, ...] | None:
        if self.row is None:
            return None if self.looked else self._fixed()
        if len(self.tried) >= CUTS or len(self.looked) >= LOOKS:
            return None
        if self.tried and time.monotonic() - self.begun > self.options.time_limit:
            return None
        row = self.row

        @cache
        def rough(places: tuple[int, ...]) -> float:
            return self._rough(row, places)

        found = [places for count in self.counts for places in proposals(
            row, count, self.machine, self.options.micro_batches, rough)]
        if not found and not self.looked:
            raise CaptureError(f"{self.name} has {len(row.seconds)} operators, of which too few can be cut between for "
                               f"{min(self.counts)} stages: start fewer ranks")
        fresh = [places for places in found if places not in self.looked]
        if len(self.counts) > 1:
            fresh.sort(key=rough)
        if not fresh or (self.tried and rough(fresh[0]) > min(rough(tried.places) for tried in self.tried)):
            return None
        return fresh[0]

    def _fixed(self) -> tuple[int, ...]:
        places, count = fixed_places(self.ranks.captured, self.options) or (), self.counts[0]
        if len(places) != count - 1:
            raise CaptureError(f"cuts has {len(places)} places, but {count} stages have {count - 1} between them")
        return places

    def _rough(self, row: Row, places: Sequence[int]) -> float:
        name = self.options.schedule if self.options.schedule in BASELINES else None
        return rough_step(row, places, self.machine, self.options.micro_batches, name)


def _try(ranks: Ranks, machine: Machine, places: tuple[int, ...], cuts: _Cuts) -> Sequence[StageCosts]:
    """Measure the stages of a cut, schedule them, and run the schedules that are good; what stages cost."""
    costs = ranks.costs(places, lambda stage: rank_of(stage, len(places) + 1, machine.ranks))
    found: list[Schedule] = []

    def scheduled() -> int:
        try:
            found.extend(_schedules(ranks, machine, places, costs))
        except (MeasureError, Infeasible) as error:
            cuts.reason = error
        return len(found)

    runs: list[Run] = []
    for i in range(ranks.told(scheduled, "searching for a schedule")):
        if i and not ranks.told(lambda: _is_worth(runs[0], ranks.options), "searching for a schedule"):
            break
        run = _run(ranks, places, found[i] if found else None)
        if run is not None:
            runs.append(run)
    if runs:
        cuts.learn(Tried(places, costs, tuple(runs)))
    return costs


def _is_worth(run: Run, options: PipelineOptions) -> bool:
    """Whether another schedule that takes about as long is to be run, by what that would take."""
    return RUNS * run.measured <= options.time_limit


def _run(ranks: Ranks, places: Sequence[int], schedule: Schedule | None) -> Run | None:
    """Run what rank 0 has as ``schedule``, on all ranks; what came of it, there."""
    plan = ranks.told_plan(lambda: None if schedule is None else plan_of(schedule), "planning")
    if plan is None:
        return None
    found = ranks.calibrated(places, plan)
    return None if found is None or schedule is None else Run(schedule, found)


# -- schedules ---------------------------------------------------------------------------------------------------------


def _schedules(ranks: Ranks, machine: Machine, places: Sequence[int], costs: Sequence[StageCosts]) -> list[Schedule]:
    """The published schedule asked for, or what a short search finds with whole backwards and with split ones, if it is
    about as good as the best of them.

    Raises :class:`~weft.runtime.measure.stage_costs.MeasureError`,
    :class:`~weft.solver.feasibility.infeasible.Infeasible` where nothing fits the memory.
    """
    options, ties = ranks.options, measured_ties(ranks.training(places))
    problems = [stage_problem(costs, ties, machine, backward, options.micro_batches,
                              copies_of_weights(options.dtype)[1]) for backward in machine.backwards]
    if options.schedule is not None:
        return [_published(str(options.schedule), problems, options.micro_batches, bool(options.compile))]
    found: list[Schedule] = []
    for i, problem in enumerate(problems):
        try:
            found.append(solve(problem, options.micro_batches, time_limit=SHARE * options.time_limit))
        except Infeasible:
            if not found and i == len(problems) - 1:
                raise
    best = min(schedule.makespan for schedule in found)
    return [schedule for schedule in found if schedule.makespan <= WORSE * best]


def _published(name: str, problems: Sequence[Problem], micro_batches: int, compiles: bool = False) -> Schedule:
    """The schedule called ``name`` of the first problem that it is for."""
    why = ""
    for problem in problems:
        try:
            schedule = published(name, problem, micro_batches)
        except NotApplicable as error:
            why = str(error)
            continue
        if faults := violations(schedule):
            raise MeasureError(f"schedule {name!r}: {faults[0]}")
        return schedule
    raise CaptureError(f"schedule {name!r} does not fit {len(problems[0].devices)} ranks: {why}" + (
        ", which compiled stages cannot be" if compiles and "split" in why else ""))


def _settled(ranks: Ranks, machine: Machine, cuts: _Cuts) -> Decision:
    """The best that was run, or what a last search finds on what was measured, if that is better when it is run."""
    best = min(cuts.tried, key=lambda tried: tried.best.measured) if cuts.tried else None
    again: list[Schedule] = []

    def searched() -> tuple[int, ...] | None:
        assert best is not None
        run = best.best
        if ranks.options.schedule is None and _is_worth(run, ranks.options):
            found = solve(run.fitted, ranks.options.micro_batches, time_limit=LAST * ranks.options.time_limit,
                          start=run.plain)
            if found.makespan < GAIN * run.alone:
                again.append(found)
        return best.places if again else None

    places = ranks.told(searched, "searching for a schedule")
    run = None if places is None else _run(ranks, places, again[0] if again else None)
    decision: Decision | None = None
    if best is not None:
        decision = _decision(ranks, machine, best, best.best if run is None or run.measured > best.best.measured
                             else run, len(cuts.looked))
    plan = ranks.told_plan(lambda: None if decision is None else decision.plan, "planning")
    told = ranks.told(lambda: None if decision is None else (decision.places, decision.notes, decision.peaks),
                      "planning")
    assert plan is not None and told is not None
    return Decision(told[0], plan, told[1], told[2])


def _decision(ranks: Ranks, machine: Machine, tried: Tried, run: Run, looked: int) -> Decision:
    options = ranks.options
    values, with_masters = copies_of_weights(options.dtype)
    schedule = run.settled()
    held = held_bytes(tried.costs, machine.ranks, options.micro_batches, with_masters)
    schedule = schedule.with_solver(static_memory=held, peak_memory=peak_bytes(
                                        tried.costs, schedule, held, run.calibration.slots),
                                    stages_alone=run.schedule.makespan, medians=run.alone,
                                    makespan_bound=schedule.makespan_bound)
    notes = list(machine.notes)
    notes.append(_told(ranks, run))
    notes += memory_notes(ranks.captured)
    if ranks.materials is not None:
        notes.append("operators were timed one by one, on numbers made for each, as the model is on the meta device")
    if options.compile:
        notes.append("stages were measured and run as they are before they are compiled")
    if looked > 1:
        notes.append(f"the cut is the best of {looked} that were looked at, chosen among balanced ones by the step of "
                     "a published schedule; others may be better")
    if any(block.kind == BlockKind.WEIGHT_GRAD for block in schedule.problem.blocks):
        notes += _held_back(ranks.captured, divided(ranks.captured, tried.places, ranks.purity))
    return Decision(tried.places, plan_with(plan_of(schedule), ranks.captured), tuple(notes), tuple(
        peak + state for peak, state in zip(run.calibration.peaks, optimizer_bytes(tried.costs, machine.ranks,
                                                                                   values), strict=True)))


def _held_back(captured: Known, cut: Division) -> list[str]:
    """What a split backward computes in I all the same: a sentence, where there is any."""
    waiting = {id(parameter) for module in cut.stages().modules.values() for parameter in deferred_parameters(module)}
    trained = {id(p): p for own in cut.parameters for p in own}
    held = [p for p in trained.values() if id(p) not in waiting]
    if not held:
        return []
    names = sorted((str(captured.name_of(p)) for p in held), key=len)
    share = sum(p.numel() for p in held) / sum(p.numel() for p in trained.values())
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return [f"of {share:.1%} of the parameters the gradient comes in I, not W: {', '.join(names[:SHOWN])}{more}"]


def _told(ranks: Ranks, run: Run) -> str:
    steps = len(run.calibration.timelines)
    known = "" if ranks.has_target else f"; no target was given, so in place of {LOSS} the mean of the result was taken"
    return (f"planned times are those of {steps} steps of this plan, run before training: blocks and messages by their "
            f"medians make {run.alone * 1e3:.3f} ms, the step took {run.measured * 1e3:.3f} ms, and all times are "
            f"stretched to that{known}")
