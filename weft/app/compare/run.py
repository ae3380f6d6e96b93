"""Known schedules and weft's own on the same model, devices, memory and durations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.app.compare.result import Comparison, fits, row_of
from weft.app.grid import labelled
from weft.app.lib.case import Case, case_of, grid_case
from weft.app.lib.grid_pipeline import found_pipeline, is_open
from weft.app.lib.options import SearchOptions
from weft.app.lib.placements import Known
from weft.app.lib.sources import read_source
from weft.app.lib.wide import WideCase
from weft.app.solving.opening import solve_source
from weft.app.solving.solve import for_objective, solve_case
from weft.solver.baselines import BASELINES, NotApplicable, baseline
from weft.solver.baselines.on_rounds import baseline_on_rounds, known_on_rounds
from weft.solver.control.clock import unwatched
from weft.solver.cpsat.budget import Budget
from weft.solver.problem import Problem
from weft.solver.problem.rounds import Rounds
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.solver.step.goals import timed_for
from weft.solver.step.search import Infeasible, Progress, is_large

if TYPE_CHECKING:
    from weft.app.lib.sources import MicroBatches, Source
    from weft.models.spec.spec import Spec


#: Shares of the remaining time for the known schedules, and for weft's own search if another one follows.
_KNOWN_SHARE, _OWN_SHARE = 0.4, 0.5
#: For large problems: the share of weft's own search, which runs first, and the table's share of the rest.
_LARGE_SHARE, _TABLE_SHARE = 0.6, 0.2
#: For a spec with an open grid: the share of the search for the best one.
_GRID_SHARE = 0.5


def compare_source(
    source: Source,
    micro_batches: MicroBatches | None,
    options: SearchOptions,
    on_progress: Callable[[Progress], None],
) -> Comparison:
    """See :func:`weft.compare`."""
    source = read_source(source)
    grid: Schedule | None = None
    if is_open(source):
        grid = solve_source(source, micro_batches, options.limited(_GRID_SHARE), on_progress)
        options = options if options.effort is None else options.limited(1 - _GRID_SHARE)
        case = grid_case(of := found_pipeline(source, grid))
    else:
        with options.preparing():
            case = for_objective(case_of(source, micro_batches, options), options.objective)
    twin = _with_adam(source)
    own_share = _OWN_SHARE if twin is not None else 1.0
    if any(is_large(placement.problem, case.micro_batches) for placement in case.placements):
        # weft has a first schedule within seconds, unlike the known ones together.
        own = solve_case(case, options.shortened(_LARGE_SHARE * own_share), on_progress)
        known, left_out = known_schedules(case, options.budget(), 1 - _TABLE_SHARE, options.objective)
    else:
        heard = on_progress
        if case.spaces:
            known, left_out, case = _known_on_all_cuts(case, options, on_progress)
            heard = _better(on_progress, known)
        else:
            known, left_out = known_schedules(case, options.budget(), objective=options.objective)
        own = solve_case(case, options.shortened(own_share), heard)
        if case.spaces and "layers_of_stage" in own.solver and not {"gpus_of_stage", "memory_plan"} & own.solver.keys():
            known, left_out = _with_own_cut(known, left_out, own)
        if case.wide is not None:
            known, left_out = _with_own_assignment(known, left_out, own, case.wide)
    if grid is not None:
        own = labelled(of, own)
        figures = {**grid.solver["grid"], **own.solver["grid"]}
        own = grid if grid.solver["grid"]["step"] <= figures["step"] else own.with_solver(grid=figures)
    schedules = {name: case.with_reserve(entry) for name, entry in {**known, "weft": own}.items()}
    adam: Schedule | str | None = None
    if twin is not None and own.solver.get("optimizer") == "adama" and not own.solver.get("interrupted"):
        try:
            adam = solve_source(twin, micro_batches, options)
        except Infeasible as refusal:
            adam = str(refusal)
    return Comparison(case, tuple(row_of(name, schedule) for name, schedule in schedules.items()), schedules, left_out,
                      adam)


def _with_adam(source: Problem | Spec) -> Spec | None:
    """The same with Adam in place of AdamA; nothing for a spec without AdamA."""
    if isinstance(source, Problem) or source.training is None or source.training.optimizer != "adama":
        return None
    return source.model_copy(update={"training": source.training.model_copy(update={"optimizer": "adam"})})


def known_schedules(case: Case, budget: Budget | None = None,
                    share: float = _KNOWN_SHARE,
                    objective: str = "makespan") -> tuple[dict[str, Schedule], dict[str, str]]:
    """Every known schedule on the best of the listed placements, by name, timed for ``objective``; and for those that
    can run on none, the reason.

    Schedules for which ``share`` of the remaining ``budget`` is too short are left out.
    """
    known, left_out = _listed(case, budget, share, objective)
    return {name: entry.labelled for name, entry in known.items()}, left_out


def _known_on_all_cuts(case: Case, options: SearchOptions, on_progress: Callable[[Progress], None],
                       ) -> tuple[dict[str, Schedule], dict[str, str], Case]:
    """Every known schedule on its best cut; the reasons for omissions; and ``case`` with the placement of the best one
    added, so that no known schedule on any cut that was tried is better than weft's."""
    from weft.app.cuts.rivals import on_best_cuts

    budget = options.budget()
    known, left_out = _listed(case, budget, _KNOWN_SHARE, options.objective)
    first = _best(known.values())
    if first is not None:
        on_progress(Progress(first.labelled, budget.elapsed, "known schedules"))
    known = on_best_cuts(case, budget, known, list(BASELINES))
    best = _best(known.values())
    if best is not None and not any(best.placement.problem == placement.problem for placement in case.placements):
        case = replace(case, placements=(*case.placements, best.placement))
    return *_in_order({name: entry.labelled for name, entry in known.items()}, left_out), case


def _with_own_cut(known: dict[str, Schedule], left_out: dict[str, str],
                  own: Schedule) -> tuple[dict[str, Schedule], dict[str, str]]:
    """``known``, updated with schedules that are better on the cut of ``own``; none of them beats ``own`` there."""
    from weft.app.cuts.rivals import on_cut_of

    with unwatched():
        for name, entry in on_cut_of(own, list(BASELINES)).items():
            if name not in known or (not fits(known[name]), known[name].makespan) > (False, entry.schedule.makespan):
                known = {**known, name: entry.labelled}
    return _in_order(known, left_out)


def _better(on_progress: Callable[[Progress], None], known: Mapping[str, Schedule]) -> Callable[[Progress], None]:
    """A listener that hears of nothing worse than the best of ``known``, which has been shown."""
    least = min((schedule.value for schedule in known.values() if fits(schedule)), default=math.inf)

    def heard(progress: Progress) -> None:
        if progress.best.value <= least * (1 + RELATIVE_TOLERANCE):
            on_progress(progress)

    return heard


def _with_own_assignment(known: dict[str, Schedule], left_out: dict[str, str], own: Schedule, wide: WideCase
                         ) -> tuple[dict[str, Schedule], dict[str, str]]:
    """``known``, updated with schedules that are better under the options and micro-batch order of ``own``, if these
    are not among the listed assignments."""
    rounds = own.rounds or Rounds(wide.problem.under(own.choices), wide.run)
    with unwatched():
        for name, schedule in known_on_rounds(rounds).items():
            best = known.get(name)
            if best is None or (not fits(schedule), schedule.value) < (not fits(best), best.value):
                title = {"placement": own.solver["placement"]} if "placement" in own.solver else {}
                known = {**known, name: replace(schedule, choices=own.choices, rounds=own.rounds).with_solver(**title)}
    return _in_order(known, left_out)


def _in_order(known: Mapping[str, Schedule], left_out: Mapping[str, str]) -> tuple[dict[str, Schedule], dict[str, str]]:
    """``known`` in the order of tables, and the reasons why the rest is left out."""
    return ({name: known[name] for name in BASELINES if name in known},
            {name: reason for name, reason in left_out.items() if name not in known})


def _best(known: Iterable[Known]) -> Known | None:
    """The fastest that fits."""
    return min((entry for entry in known if entry.fits), key=lambda entry: entry.rank, default=None)


def _listed(case: Case, budget: Budget | None, share: float,
            objective: str) -> tuple[dict[str, Known], dict[str, str]]:
    """The known schedules on the best of the listed placements; and the reasons why the others can run on none of
    them."""
    known: dict[str, Known] = {}
    left_out = dict.fromkeys(BASELINES, "the time limit is too short to make it")
    with nullcontext() if budget is None else budget.limited(share):
        for name in BASELINES:
            made, reason = _made(case, name, objective)
            if made:
                known[name] = min(made, key=lambda entry: entry.rank)
                del left_out[name]
            else:
                left_out[name] = reason
    return known, left_out


def _made(case: Case, name: str, objective: str) -> tuple[list[Known], str]:
    """Schedule ``name`` on every placement on which it can run, and the reason why it cannot run on the first of the
    others."""
    found: list[Known] = []
    reason = ("" if case.placements else "stages that are all alike do not fit" if case.open
              else "the whole model on every GPU leaves nothing to order")
    for placement in case.placements:
        try:
            made = (baseline(name, placement.problem, case.micro_batches // placement.replicas)
                    if placement.rounds is None else baseline_on_rounds(name, placement.rounds))
            schedule = made if objective == "makespan" else timed_for(made, objective)
        except NotApplicable as error:
            reason = reason or str(error)
        else:
            found.append(Known(placement, schedule, fits(schedule)))
    return found, reason
