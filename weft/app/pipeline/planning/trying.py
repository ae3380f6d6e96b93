"""A cut is tried: its stages are measured, scheduled, and run for a few steps by the executor itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

from weft.app.pipeline.lib.options import PipelineOptions
from weft.app.pipeline.lib.precision import copies_of_weights
from weft.app.pipeline.planning.backends import BackendCosts, backends_told, by_backends, measured_backends
from weft.app.pipeline.planning.cuts import Cuts, Tried
from weft.app.pipeline.planning.frozen import published
from weft.app.pipeline.planning.machine import Machine
from weft.app.pipeline.planning.measuring import Ranks
from weft.app.pipeline.planning.problems import StagesRun, least, stage_problem
from weft.app.pipeline.planning.row import rank_of
from weft.runtime.backends.registry import EAGER
from weft.runtime.backends.stages import STAGE_BACKENDS
from weft.runtime.captured.captured import CaptureError
from weft.runtime.measure.measure_stages import measured_ties
from weft.runtime.measure.stage_costs import MeasureError, StageCosts
from weft.runtime.plan.plan import plan_of
from weft.solver.baselines import NotApplicable
from weft.solver.feasibility.infeasible import Infeasible
from weft.solver.judge.validate import violations
from weft.solver.problem import Problem
from weft.solver.schedule import Schedule
from weft.solver.step.search import solve

#: A schedule this much longer than the best of its cut is not run, nor one this much longer than the best of all cuts,
#: by what stages took when they were measured.
WORSE, ELSEWHERE = 1.05, 1.02
#: Published schedules that the searched ones are run beside: 1F1B and its kin, of one stage a rank and of two.
KIN = ("1f1b", "zb-h1", "zb-v")
#: By how much a searched order must promise a shorter step than these to be run too.
GAIN = 0.99
#: The share of the time limit that the search has for each schedule of a cut that is tried.
SHARE = 1 / 8
#: Steps that running a schedule takes, about.
RUNS = 3


def try_cut(ranks: Ranks, machine: Machine, places: tuple[int, ...], cuts: Cuts) -> Sequence[StageCosts]:
    """Measure the stages of a cut, schedule them, and run the schedules that are good; what stages cost."""
    training = ranks.training(places)
    costs = ranks.costs(training, lambda stage: rank_of(stage, len(places) + 1, machine.ranks))
    ties = measured_ties(training)
    del training  # on the meta device its modules would hold numbers
    others = {} if ranks.options.backends is None else measured_backends(ranks, machine, places, cuts.skipped)
    found: list[Schedule] = []

    def scheduled() -> int:
        best = least([tried.best for tried in cuts.tried]) if cuts.tried else None
        try:
            found.extend(schedule for schedule in _schedules(ranks, machine, ties, costs, others)
                         if best is None or schedule.makespan <= ELSEWHERE * best.schedule.makespan)
            cuts.promising = bool(found)
        except (MeasureError, Infeasible) as error:
            cuts.reason = error
        return len(found)

    runs: list[StagesRun] = []
    for i in range(ranks.told(scheduled, "searching for a schedule")):
        if i and not ranks.told(lambda: is_worth(runs[0], ranks.options), "searching for a schedule"):
            break
        run = run_schedule(ranks, places, found[i] if found else None, [*(tried.best for tried in cuts.tried), *runs])
        if run is not None:
            runs.append(run)
    if runs:
        cuts.learn(Tried(places, costs, tuple(runs)))
    return costs


def is_worth(run: StagesRun, options: PipelineOptions) -> bool:
    """Whether another schedule that takes about as long is to be run, by what that would take."""
    return RUNS * run.measured <= options.time_limit


def run_schedule(ranks: Ranks, places: Sequence[int], schedule: Schedule | None,
                 others: Sequence[StagesRun] = ()) -> StagesRun | None:
    """Run what rank 0 has as ``schedule``, on all ranks, until it is known or one of the ``others`` has beaten it; what
    came of it, there."""
    plan = ranks.told_plan(lambda: None if schedule is None else plan_of(schedule), "planning")
    if plan is None:
        return None
    best = min(others, key=lambda run: run.measured, default=None)
    with ranks.stepping(places, plan) as steps:
        memory = steps.memory() if ranks.told(lambda: best is None, "planning") else None
        found = steps.timed(math.inf if best is None else best.measured + best.calibration.noise)
    return None if found is None or schedule is None else StagesRun(schedule, found, memory)


def _schedules(ranks: Ranks, machine: Machine, ties: Sequence[tuple[str, Sequence[int]]],
               costs: Sequence[StageCosts], others: BackendCosts) -> list[Schedule]:
    """The published schedule asked for; or, with whole backwards and with split ones, the best of the known ones, and
    what a short search finds where that promises more, if they are about as good as the best of all. ``others``: what
    stages cost by other backends than eager.

    Raises :class:`~weft.runtime.measure.stage_costs.MeasureError`,
    :class:`~weft.solver.feasibility.infeasible.Infeasible` where nothing fits the memory.
    """
    options = ranks.options

    def problem_of(costs: Sequence[StageCosts], backward: str) -> Problem:
        return stage_problem(costs, ties, machine, backward, options.micro_batches, copies_of_weights(options.dtype)[1])

    problems = [problem_of(costs, backward) for backward in machine.backwards]
    if options.schedule is not None:
        return [_published(str(options.schedule), problems, options.micro_batches, bool(options.compile))]
    found: list[Schedule] = []
    for i, problem in enumerate(problems):
        known = _known(problem, options.micro_batches)
        try:
            best = (solve(problem, options.micro_batches, time_limit=SHARE * options.time_limit)
                    if not others or machine.backwards[i] != "full" else by_backends(
                        costs, others, lambda own: problem_of(own, "full"), options.micro_batches,
                        SHARE * options.time_limit))
        except Infeasible:
            if not found and i == len(problems) - 1:
                raise
            continue
        found += [known] if known is not None else []
        found += [best] if known is None or best.makespan < GAIN * known.makespan else []
    if options.backends is not None:
        found = [schedule.with_solver(**{STAGE_BACKENDS: [EAGER] * len(costs), **backends_told(schedule)})
                 for schedule in found]
    shortest = min(schedule.makespan for schedule in found)
    return [schedule for schedule in found if schedule.makespan <= WORSE * shortest]


def _known(problem: Problem, micro_batches: int) -> Schedule | None:
    """The shortest of the published schedules of this kind of stages, if one is for them and fits the memory."""
    found: list[Schedule] = []
    for name in KIN:
        with suppress(NotApplicable, Infeasible):
            schedule = published(name, problem, micro_batches)
            if not violations(schedule):
                found.append(schedule)
    return min(found, key=lambda schedule: schedule.makespan, default=None)


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
