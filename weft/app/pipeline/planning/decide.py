"""What all ranks run: where the model is cut, what its stages cost, and the schedule. All measure, rank 0 decides.

Cuts are proposed on the times of single operators (:mod:`weft.app.pipeline.planning.row`). One after another, the best
of them are measured stage by stage, scheduled, and run for a few steps by the executor itself
(:mod:`weft.runtime.replay.planned_steps`): what blocks, messages and the executor took then, with neighbours at work,
are the costs of the plan, by which further cuts are proposed and the last search is made. A cut under which no schedule
fits the memory makes way for another one. A plan that was measured quietly is kept for the next call
(:mod:`weft.app.pipeline.lib.kept`).

A plan that the user has given, in one of the ways there are, is held against the ranks instead.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from statistics import median_low

from weft.app.lib.judged import judged
from weft.app.pipeline.lib.kept import KeptPlans, PipelineDecision
from weft.app.pipeline.lib.options import PipelineOptions
from weft.app.pipeline.lib.precision import copies_of_weights
from weft.app.pipeline.lib.split import Model, divided, fixed_places, stage_counts
from weft.app.pipeline.planning.backends import backends_notes, backends_told
from weft.app.pipeline.planning.cuts import Cuts, Tried
from weft.app.pipeline.planning.machine import Machine, look_at
from weft.app.pipeline.planning.measuring import Example, Ranks
from weft.app.pipeline.planning.memory.planned import asked_decisions, cuts_of, memory_notes, memory_planned, plan_with
from weft.app.pipeline.planning.problems import StagesRun, held_bytes, least, optimizer_bytes, peak_bytes, retimed
from weft.app.pipeline.planning.trying import GAIN, is_worth, run_schedule, try_cut
from weft.app.pipeline.planning.uneven import uneven_notes
from weft.runtime.captured.captured import Captured, CaptureError
from weft.runtime.captured.division import Goal, KnownModel, ModelDivision
from weft.runtime.captured.loss import LOSS
from weft.runtime.captured.materials import Materials
from weft.runtime.captured.purity import Purity
from weft.runtime.plan.buffers import OPEN_SENDS
from weft.runtime.plan.plan import Plan, load_plan, plan_from_json, plan_of, plan_to_json
from weft.runtime.plan.timeline import Measured
from weft.runtime.ranks.session import Session
from weft.runtime.ranks.words import some
from weft.runtime.replay.planned_steps import StepMemory
from weft.runtime.train.stage import deferred_parameters
from weft.solver.baselines import BASELINES
from weft.solver.io.schedule_files import load_schedule
from weft.solver.problem import BlockKind
from weft.solver.schedule import Schedule
from weft.solver.step.search import solve

__all__ = ["PipelineDecision", "Example", "decide", "given_plan"]

#: Published schedules that need two stages a device, and where they stand: in a V.
IN_A_V = ("zb-v", "zb-v-auto", "v-block")
SHOWN = 4  # names in a sentence
#: The share of the time limit that the last search has.
LAST = 1 / 2


def decide(captured: Model, purity: Purity | None, example: Example, goal: Goal, session: Session,
           options: PipelineOptions, materials: Materials | None = None) -> PipelineDecision:
    """The plan of ``captured`` for the ranks of ``session``, which call it together, and all get the same. Where it is
    on the meta device, stages are given ``materials`` while they are measured.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for a model that cannot be cut so, and what searching
    and measuring raise; what goes wrong on rank 0 is raised there alone.
    """
    ranks = Ranks(captured, purity, example, goal, session, options, materials)
    given = ranks.told_plan(lambda: given_plan(options, session.world), "reading the plan")
    if given is not None and options.compile and any(block.kind == BlockKind.WEIGHT_GRAD
                                                     for block in given.problem.blocks):
        raise CaptureError("the plan splits backwards, which compiled stages cannot: leave compile out, or give a plan "
                           "with whole backwards")
    if given is not None and options.cuts is None and isinstance(captured, Captured):
        options = replace(options, cuts=cuts_of(given))
        ranks = replace(ranks, options=options)
    kept = KeptPlans(captured, example.target, session, options) if given is None else None
    if kept is not None and (found := ranks.told(kept.read, "looking for a plan that was kept")) is not None:
        return PipelineDecision.from_json(found)
    if (decisions := asked_decisions(captured, purity, options, given)):
        ranks = ranks.deciding(decisions)
    sizes = ranks.sizes()
    machine = look_at(session, options, [int(size) for size in sizes if size is not None], ranks.model_bytes)
    counts = stage_counts(captured, _counts(machine, options, given), machine.ranks)
    row = None if fixed_places(captured, options) is not None else ranks.row(sizes)
    cuts = Cuts(ranks, machine, row, counts)
    if given is not None:
        places = ranks.told(cuts.following, "cutting the model")
        assert places is not None
        return PipelineDecision(places, plan_with(given, ranks.captured, places), (
            "the plan was given, its costs too", *memory_notes(ranks.captured)))
    while (places := ranks.told(cuts.following, "choosing a cut")) is not None:
        try_cut(ranks, machine, places, cuts)
    if ranks.told(lambda: not cuts.tried, "choosing a cut"):
        ranks = memory_planned(ranks, machine, lambda own, places: cuts.attempted(try_cut(own, machine, places, cuts)),
                               cuts.best_attempt)
    made = _settled(ranks, machine, cuts)
    if kept is not None and ranks.decides:
        kept.keep(made)
    return made


def _counts(machine: Machine, options: PipelineOptions, given: Plan | None) -> tuple[int, ...]:
    """Into how many stages the model may be cut."""
    if given is not None:
        return (len(given.stage_groups or ()),)
    if options.schedule is not None:
        return (2 * machine.ranks if options.schedule in IN_A_V else machine.ranks,)
    return tuple({"chain": machine.ranks, "v": 2 * machine.ranks}[shape] for shape in machine.shapes)


def _settled(ranks: Ranks, machine: Machine, cuts: Cuts) -> PipelineDecision:
    """The best that was run, or what a last search finds on what was measured, if that is better when it is run."""
    best = None
    if cuts.tried:
        quickest = least([tried.best for tried in cuts.tried])
        best = next(tried for tried in cuts.tried if tried.best is quickest)
    again: list[Schedule] = []

    def searched() -> tuple[int, ...]:
        assert best is not None
        run = best.best
        if ranks.options.schedule is None and run.bound < GAIN * run.alone and is_worth(run, ranks.options):
            found = solve(run.fitted, ranks.options.micro_batches, time_limit=LAST * ranks.options.time_limit,
                          start=run.plain)
            if found.makespan < GAIN * run.alone:
                again.append(found.with_solver(**backends_told(run.schedule)))
        return best.places

    places = ranks.told(searched, "searching for a schedule")
    run = run_schedule(ranks, places, again[0] if again else None, [] if best is None else [best.best])
    chosen: tuple[Tried, StagesRun, Schedule] | None = None
    if best is not None:
        quickest = best.best if run is None else least([best.best, run])
        chosen = best, quickest, quickest.settled()
    memory = None if chosen is None else chosen[1].memory
    plan = ranks.told_plan(lambda: None if chosen is None or memory is not None else plan_of(chosen[2]), "planning")
    if plan is not None:
        with ranks.stepping(places, plan) as steps:
            memory = steps.memory()
    decision = None if chosen is None or memory is None else _decision(ranks, machine, *chosen, memory, cuts)
    told = ranks.told(lambda: None if decision is None else (plan_to_json(decision.plan), decision.notes,
                                                             decision.peaks, decision.lasts), "planning")
    assert told is not None
    return PipelineDecision(places, plan_from_json(told[0]), *told[1:])


def _decision(ranks: Ranks, machine: Machine, tried: Tried, run: StagesRun, schedule: Schedule, memory: StepMemory,
              cuts: Cuts) -> PipelineDecision:
    options, looked = ranks.options, len(cuts.looked)
    values, with_masters = copies_of_weights(options.dtype)
    under_way = 0 if memory.sends_at_once else OPEN_SENDS
    held = held_bytes(tried.costs, machine.ranks, options.micro_batches, with_masters, under_way)
    schedule = schedule.with_solver(static_memory=held, peak_memory=_peaks(tried, run, schedule, memory, held),
                                    stages_alone=run.schedule.makespan, medians=run.alone,
                                    makespan_bound=schedule.makespan_bound)
    notes = list(machine.notes)
    notes.append(_told(ranks, run))
    notes += memory_notes(ranks.captured)
    if ranks.materials is not None:
        notes.append("operators were timed one by one, on numbers made for each, as the model is on the meta device")
    if options.compile:
        notes.append("stages were measured and run as they are before they are compiled")
    notes += backends_notes(schedule, cuts.skipped)
    if looked > 1:
        notes.append(f"the cut is the best of {looked} that were looked at, chosen among balanced ones by the step of "
                     "a published schedule; others may be better")
    if any(block.kind == BlockKind.WEIGHT_GRAD for block in schedule.problem.blocks):
        notes += _held_back(ranks.captured, divided(ranks.captured, tried.places, ranks.purity))
    peaks = tuple(peak + state for peak, state in zip(memory.peaks, optimizer_bytes(
        tried.costs, machine.ranks, values), strict=True))
    notes += uneven_notes(schedule.problem, peaks, ranks.captured, cuts.row, options)
    return PipelineDecision(tried.places, plan_with(plan_of(schedule), ranks.captured, tried.places), tuple(notes),
                            peaks, not run.unrest)


def _peaks(tried: Tried, run: StagesRun, schedule: Schedule, memory: StepMemory, held: Sequence[int]) -> list[int]:
    """The peaks of ``schedule`` by its own times, by those of the step whose memory was recorded, or by the median of
    the timed steps, whichever is the most: what waits for its receiver depends on them."""
    plan = plan_of(schedule)

    def peaks(laps: Sequence[Measured]) -> list[int]:
        waiting = memory.waiting(plan, laps) if memory.sends_at_once else ()
        return peak_bytes(tried.costs, retimed(schedule, laps), held, memory.slots, waiting)

    planned = [Measured(schedule.problem.blocks[block].name, micro_batch, 0, start, end)
               for block, micro_batch, start, end in schedule.operations]
    timed = [peaks(steps.operations) for steps in run.calibration.timelines]
    found = [peaks(planned), peaks(memory.laps), list(map(median_low, zip(*timed, strict=True)))]
    return list(map(max, zip(*filter(None, found), strict=True)))


def _held_back(captured: KnownModel, cut: ModelDivision) -> list[str]:
    """What a split backward computes in I all the same: a sentence, where there is any."""
    waiting = {id(parameter) for module in cut.stages().modules.values() for parameter in deferred_parameters(module)}
    trained = {id(p): p for own in cut.parameters for p in own}
    held = [p for p in trained.values() if id(p) not in waiting]
    if not held:
        return []
    names = sorted((str(captured.name_of(p)) for p in held), key=len)
    share = sum(p.numel() for p in held) / sum(p.numel() for p in trained.values())
    return [f"of {share:.1%} of the parameters the gradient comes in I, not W: {some(names, SHOWN)}"]


def _told(ranks: Ranks, run: StagesRun) -> str:
    steps = len(run.calibration.timelines)
    known = "" if ranks.has_target else f"; no target was given, so in place of {LOSS} the mean of the result was taken"
    return (f"planned times are those of {steps} steps of this plan, run before training: blocks and messages by their "
            f"medians make {run.alone * 1e3:.3f} ms, the step took {run.measured * 1e3:.3f} ms, and all times are "
            f"stretched to that{known}{run.unrest}")


def given_plan(options: PipelineOptions, ranks: int) -> Plan | None:
    """The plan of ``plan`` or ``schedule``, held against the ranks; ``None`` where one is to be found.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for one of other ranks, micro-batches or blocks.
    """
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
