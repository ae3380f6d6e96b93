"""Measures one cut: its stages are timed, scheduled, and the best schedules run for a few steps by the executor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

from weft.app.pipeline.lib.options import PipelineOptions
from weft.app.pipeline.lib.precision import copies_of_weights
from weft.app.pipeline.planning.backends import BackendCosts, backend_record, by_backends, measured_backends
from weft.app.pipeline.planning.cuts import Cuts, TriedCut
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

#: Schedules are run only if their makespan on measured stages is within these factors of the best schedule of the same
#: cut, and of the best of all cuts.
WITHIN_CUT, OF_ALL_CUTS = 1.05, 1.02
#: Published schedules that are run for comparison with searched ones, for one stage per rank and for two.
PUBLISHED = ("1f1b", "zb-h1", "zb-v")
#: A searched schedule is run too if its makespan is below this share of the best published one.
GAIN = 0.99
#: Share of the time limit for each search of a schedule.
SHARE = 1 / 8
#: Steps that a run of a schedule takes, approximately.
STEPS = 3


def try_cut(ranks: Ranks, machine: Machine, places: tuple[int, ...], cuts: Cuts) -> Sequence[StageCosts]:
    """Measure the stages of a cut, schedule them, and run the best schedules. Returns the costs of the stages."""
    training = ranks.training(places)
    costs = ranks.costs(training, lambda stage: rank_of(stage, len(places) + 1, machine.ranks))
    ties = measured_ties(training)
    del training  # of a model on the meta device, it has allocated the weights
    others = {} if ranks.options.backends is None else measured_backends(ranks, machine, places, cuts.skipped)
    found: list[Schedule] = []

    def scheduled() -> int:
        best = least([tried.best for tried in cuts.tried]) if cuts.tried else None
        try:
            found.extend(schedule for schedule in _schedules(ranks, machine, ties, costs, others)
                         if best is None or schedule.makespan <= OF_ALL_CUTS * best.schedule.makespan)
            cuts.promising = bool(found)
        except (MeasureError, Infeasible) as error:
            cuts.reason = error
        return len(found)

    runs: list[StagesRun] = []
    for i in range(ranks.broadcast(scheduled, "searching for a schedule")):
        if i and not ranks.broadcast(lambda: affordable(runs[0], ranks.options), "searching for a schedule"):
            break
        run = run_schedule(ranks, places, found[i] if found else None, [*(tried.best for tried in cuts.tried), *runs])
        if run is not None:
            runs.append(run)
    if runs:
        cuts.learn(TriedCut(places, costs, tuple(runs)))
    return costs


def affordable(run: StagesRun, options: PipelineOptions) -> bool:
    """Whether the time limit allows running another schedule of about the same length."""
    return STEPS * run.measured <= options.time_limit


def run_schedule(ranks: Ranks, places: Sequence[int], schedule: Schedule | None,
                 others: Sequence[StagesRun] = ()) -> StagesRun | None:
    """Run rank 0's ``schedule`` on all ranks until its step time is known, or is clearly longer than the best of the
    ``others``. Returns the result on rank 0; ``None`` elsewhere and for a schedule that was abandoned."""
    plan = ranks.broadcast_plan(lambda: None if schedule is None else plan_of(schedule), "planning")
    if plan is None:
        return None
    best = min(others, key=lambda run: run.measured, default=None)
    with ranks.stepping(places, plan) as steps:
        memory = steps.memory() if ranks.broadcast(lambda: best is None, "planning") else None
        found = steps.timed(math.inf if best is None else best.measured + best.calibration.noise)
    return None if found is None or schedule is None else StagesRun(schedule, found, memory)


def _schedules(ranks: Ranks, machine: Machine, ties: Sequence[tuple[str, Sequence[int]]],
               costs: Sequence[StageCosts], others: BackendCosts) -> list[Schedule]:
    """The published schedule that the user requested; otherwise, with full and with split backwards, the best published
    schedule and a searched one if its makespan is shorter, as far as they are close to the best of all. ``others``:
    stage costs by backends other than eager.

    Raises :class:`~weft.runtime.measure.stage_costs.MeasureError`,
    :class:`~weft.solver.feasibility.infeasible.Infeasible` if nothing fits the memory.
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
        found = [schedule.with_solver(**{STAGE_BACKENDS: [EAGER] * len(costs), **backend_record(schedule)})
                 for schedule in found]
    shortest = min(schedule.makespan for schedule in found)
    return [schedule for schedule in found if schedule.makespan <= WITHIN_CUT * shortest]


def _known(problem: Problem, micro_batches: int) -> Schedule | None:
    """The shortest published schedule that applies to these stages and fits the memory, if any."""
    found: list[Schedule] = []
    for name in PUBLISHED:
        with suppress(NotApplicable, Infeasible):
            schedule = published(name, problem, micro_batches)
            if not violations(schedule):
                found.append(schedule)
    return min(found, key=lambda schedule: schedule.makespan, default=None)


def _published(name: str, problems: Sequence[Problem], micro_batches: int, compiles: bool = False) -> Schedule:
    """The schedule called ``name``, of the first problem that it applies to."""
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
        ", which compiled stages do not support" if compiles and "split" in why else ""))
