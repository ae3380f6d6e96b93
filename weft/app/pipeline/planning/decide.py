"""Decides what all ranks run: the cut of the model and the schedule of its stages. All ranks measure, rank 0 decides.

Cuts are proposed from the times of single operators (:mod:`weft.app.pipeline.planning.row`). The best cuts are measured
stage by stage, scheduled, and run for a few steps by the executor (:mod:`weft.runtime.replay.planned_steps`). Blocks,
messages and the executor's overhead, timed in these steps while all ranks run, are the costs of the plan; further cuts
and the final search use them. If no schedule of a cut fits the memory, the next cut is tried. A plan that was measured
without interference from other processes is cached (:mod:`weft.app.pipeline.lib.plan_cache`).

A plan or schedule that the user gives is checked against the ranks instead.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from statistics import median_low

from weft.app.lib.judged import judged
from weft.app.pipeline.lib.options import PipelineOptions
from weft.app.pipeline.lib.plan_cache import PipelineDecision, PlanCache
from weft.app.pipeline.lib.precision import copies_of_weights
from weft.app.pipeline.lib.split import Model, divided, fixed_places, stage_counts
from weft.app.pipeline.planning.backends import backend_record, backends_notes
from weft.app.pipeline.planning.cuts import Cuts, TriedCut
from weft.app.pipeline.planning.imbalance import imbalance_notes
from weft.app.pipeline.planning.machine import Machine, detect_machine
from weft.app.pipeline.planning.measuring import Example, Ranks
from weft.app.pipeline.planning.memory.planned import (
    cuts_of,
    memory_notes,
    memory_planned,
    plan_with,
    requested_decisions,
)
from weft.app.pipeline.planning.problems import StagesRun, least, optimizer_bytes, peak_bytes, resident_bytes, retimed
from weft.app.pipeline.planning.trying import GAIN, affordable, run_schedule, try_cut
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

#: Published schedules that need two stages per device, placed in a V.
IN_A_V = ("zb-v", "zb-v-auto", "v-block")
SHOWN = 4  # most names in a sentence
#: Share of the time limit for the final search.
FINAL = 1 / 2


def decide(captured: Model, purity: Purity | None, example: Example, goal: Goal, session: Session,
           options: PipelineOptions, materials: Materials | None = None) -> PipelineDecision:
    """The plan of ``captured`` for the ranks of ``session``. Collective: all ranks call it and get the same plan. The
    stages of a model on the meta device get their weights from ``materials`` while they are measured.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` for a model that cannot be cut as requested, and the
    errors of search and measurement. An error of rank 0 is raised on rank 0 alone.
    """
    ranks = Ranks(captured, purity, example, goal, session, options, materials)
    given = ranks.broadcast_plan(lambda: given_plan(options, session.world), "reading the plan")
    if given is not None and options.compile and any(block.kind == BlockKind.WEIGHT_GRAD
                                                     for block in given.problem.blocks):
        raise CaptureError("the plan splits backwards, but compiled stages cannot split: leave compile out, or give a "
                           "plan with full backwards")
    if given is not None and options.cuts is None and isinstance(captured, Captured):
        options = replace(options, cuts=cuts_of(given))
        ranks = replace(ranks, options=options)
    kept = PlanCache(captured, example.target, session, options) if given is None else None
    if kept is not None and (found := ranks.broadcast(kept.read, "looking for a cached plan")) is not None:
        return PipelineDecision.from_json(found)
    if (decisions := requested_decisions(captured, purity, options, given)):
        ranks = ranks.deciding(decisions)
    sizes = ranks.sizes()
    machine = detect_machine(session, options, [int(size) for size in sizes if size is not None], ranks.model_bytes)
    counts = stage_counts(captured, _counts(machine, options, given), machine.ranks)
    row = None if fixed_places(captured, options) is not None else ranks.row(sizes)
    cuts = Cuts(ranks, machine, row, counts)
    if given is not None:
        places = ranks.broadcast(cuts.next_cut, "cutting the model")
        assert places is not None
        return PipelineDecision(places, plan_with(given, ranks.captured, places), (
            "the plan was given, with its costs", *memory_notes(ranks.captured)))
    while (places := ranks.broadcast(cuts.next_cut, "choosing a cut")) is not None:
        try_cut(ranks, machine, places, cuts)
    if ranks.broadcast(lambda: not cuts.tried, "choosing a cut"):
        ranks = memory_planned(ranks, machine, lambda own, places: cuts.attempted(try_cut(own, machine, places, cuts)),
                               cuts.best_attempt)
    made = _settled(ranks, machine, cuts)
    if kept is not None and ranks.decides:
        kept.keep(made)
    return made


def _counts(machine: Machine, options: PipelineOptions, given: Plan | None) -> tuple[int, ...]:
    """The possible numbers of stages."""
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
        if ranks.options.schedule is None and run.bound < GAIN * run.fitted_makespan and affordable(run, ranks.options):
            found = solve(run.fitted, ranks.options.micro_batches, time_limit=FINAL * ranks.options.time_limit,
                          start=run.fitted_schedule)
            if found.makespan < GAIN * run.fitted_makespan:
                again.append(found.with_solver(**backend_record(run.schedule)))
        return best.places

    places = ranks.broadcast(searched, "searching for a schedule")
    run = run_schedule(ranks, places, again[0] if again else None, [] if best is None else [best.best])
    chosen: tuple[TriedCut, StagesRun, Schedule] | None = None
    if best is not None:
        quickest = best.best if run is None else least([best.best, run])
        chosen = best, quickest, quickest.calibrated()
    memory = None if chosen is None else chosen[1].memory
    plan = ranks.broadcast_plan(lambda: None if chosen is None or memory is not None else plan_of(chosen[2]),
                                "planning")
    if plan is not None:
        with ranks.stepping(places, plan) as steps:
            memory = steps.memory()
    decision = None if chosen is None or memory is None else _decision(ranks, machine, *chosen, memory, cuts)
    told = ranks.broadcast(lambda: None if decision is None else (plan_to_json(decision.plan), decision.notes,
                                                                  decision.peaks, decision.lasts), "planning")
    assert told is not None
    return PipelineDecision(places, plan_from_json(told[0]), *told[1:])


def _decision(ranks: Ranks, machine: Machine, tried: TriedCut, run: StagesRun, schedule: Schedule, memory: StepMemory,
              cuts: Cuts) -> PipelineDecision:
    options, candidates = ranks.options, len(cuts.candidates)
    values, with_masters = copies_of_weights(options.dtype)
    open_sends = 0 if memory.sends_at_once else OPEN_SENDS
    resident = resident_bytes(tried.costs, machine.ranks, options.micro_batches, with_masters, open_sends)
    schedule = schedule.with_solver(static_memory=resident, peak_memory=_peaks(tried, run, schedule, memory, resident),
                                    stages_alone=run.schedule.makespan, medians=run.fitted_makespan,
                                    makespan_bound=schedule.makespan_bound)
    notes = list(machine.notes)
    notes.append(_timing_note(ranks, run))
    notes += memory_notes(ranks.captured)
    if ranks.materials is not None:
        notes.append("operators were timed one by one on generated tensors, as the model is on the meta device")
    if options.compile:
        notes.append("stages were measured and run before they are compiled")
    notes += backends_notes(schedule, cuts.skipped)
    if candidates > 1:
        notes.append(f"the cut is the best of {candidates} that were measured, chosen among balanced cuts by the step "
                     "of a published schedule; others may be better")
    if any(block.kind == BlockKind.WEIGHT_GRAD for block in schedule.problem.blocks):
        notes += _undeferred_notes(ranks.captured, divided(ranks.captured, tried.places, ranks.purity))
    peaks = tuple(peak + state for peak, state in zip(memory.peaks, optimizer_bytes(
        tried.costs, machine.ranks, values), strict=True))
    notes += imbalance_notes(schedule.problem, peaks, ranks.captured, cuts.row, options)
    return PipelineDecision(tried.places, plan_with(plan_of(schedule), ranks.captured, tried.places), tuple(notes),
                            peaks, not run.noise_note)


def _peaks(tried: TriedCut, run: StagesRun, schedule: Schedule, memory: StepMemory,
           resident: Sequence[int]) -> list[int]:
    """Bytes of each rank's peak: the largest by the planned times, by the times of the step whose memory was recorded,
    and by the median of the timed steps. Times matter because sent tensors stay until their receiver takes them."""
    plan = plan_of(schedule)

    def peaks(laps: Sequence[Measured]) -> list[int]:
        waiting = memory.waiting(plan, laps) if memory.sends_at_once else ()
        return peak_bytes(tried.costs, retimed(schedule, laps), resident, memory.slots, waiting)

    planned = [Measured(schedule.problem.blocks[block].name, micro_batch, 0, start, end)
               for block, micro_batch, start, end in schedule.operations]
    timed = [peaks(steps.operations) for steps in run.calibration.timelines]
    found = [peaks(planned), peaks(memory.laps), list(map(median_low, zip(*timed, strict=True)))]
    return list(map(max, zip(*filter(None, found), strict=True)))


def _undeferred_notes(captured: KnownModel, cut: ModelDivision) -> list[str]:
    """A sentence on weight gradients that a split backward computes in I instead of W, if there are any."""
    deferred = {id(parameter) for module in cut.stages().modules.values() for parameter in deferred_parameters(module)}
    trained = {id(p): p for own in cut.parameters for p in own}
    undeferred = [p for p in trained.values() if id(p) not in deferred]
    if not undeferred:
        return []
    names = sorted((str(captured.name_of(p)) for p in undeferred), key=len)
    share = sum(p.numel() for p in undeferred) / sum(p.numel() for p in trained.values())
    return [f"the gradients of {share:.1%} of the parameters are computed in I, not W: {some(names, SHOWN)}"]


def _timing_note(ranks: Ranks, run: StagesRun) -> str:
    steps = len(run.calibration.timelines)
    known = "" if ranks.has_target else f"; no target was given, so the mean of the result stands in for {LOSS}"
    return (f"planned times are measured in {steps} steps of this plan before training: by the median times of blocks "
            f"and messages a step takes {run.fitted_makespan * 1e3:.3f} ms, the measured step took "
            f"{run.measured * 1e3:.3f} ms, and all times are scaled to it{known}{run.noise_note}")


def given_plan(options: PipelineOptions, ranks: int) -> Plan | None:
    """The plan of the options ``plan`` or ``schedule``; ``None`` if neither gives one.

    Raises :class:`~weft.runtime.captured.captured.CaptureError` if it is for other ranks, micro-batches or blocks.
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
        raise CaptureError("a captured model is cut into stages on one rank each, but the plan's blocks are not such "
                           "stages: plan for stages in a row")
    return found
