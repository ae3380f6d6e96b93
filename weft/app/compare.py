"""Known schedules and weft's own on the same model, devices, memory and durations: a table of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from weft.app.grid import labelled
from weft.app.lib.case import Case, case_of, grid_case, read_source
from weft.app.lib.coverage import others
from weft.app.lib.decided_memory import plan_text
from weft.app.lib.grid_pipeline import found_pipeline, is_open
from weft.app.lib.options import SearchOptions
from weft.app.lib.placements import SEARCHES, Known
from weft.app.lib.results import Tabular
from weft.app.lib.verdicts import grid_lines
from weft.app.lib.wide import WideCase
from weft.app.solving.opening import solve_source
from weft.app.solving.solve import for_objective, solve_case
from weft.solver.baselines import BASELINES, NotApplicable, baseline
from weft.solver.baselines.on_rounds import baseline_on_rounds, known_on_rounds
from weft.solver.control.clock import unwatched
from weft.solver.cpsat.budget import Budget
from weft.solver.judge.validate import violations
from weft.solver.problem import Number, Problem
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.solver.step.goals import timed_for
from weft.solver.step.search import Infeasible, Progress, is_large
from weft.solver.wide.problem import WideProblem
from weft.solver.wide.run import Rounds
from weft.text.counts import choices_text, micro_batches_text
from weft.text.tables import table_of
from weft.text.units import each_text, memory_text, time_text

if TYPE_CHECKING:
    from weft.app.lib.sources import MicroBatches, Source
    from weft.models.spec.spec import Spec


#: Shares of the remaining time for the known schedules, and for weft's own search if another one follows.
_KNOWN_SHARE, _OWN_SHARE = 0.4, 0.5
#: For large problems: the share of weft's own search, which runs first, and the table's share of the rest.
_LARGE_SHARE, _TABLE_SHARE = 0.6, 0.2
#: For a spec with an open grid: the share of the search for the best one.
_GRID_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One schedule's figures. Times are in the problem's unit, memory in its unit; bubbles are shares, 0 to 1.

    ``peak`` is the highest memory use of each device, static memory included if known. ``fits`` says whether every
    device has that much. Only weft's own row has ``bound`` and ``gap``. ``span`` is given if spans are compared, and
    ``bound`` and ``gap`` then refer to it.
    """

    name: str
    title: str
    placement: str
    makespan: float
    bubble_steady: float | None
    bubble_step: float
    bubble_span: float
    peak: tuple[Number, ...]
    fits: bool
    bound: float | None = None
    gap: float | None = None
    bound_over_placements: float | None = None
    span: float | None = None

    @property
    def value(self) -> float:
        """The interval between steps: the span if spans are compared, else the makespan."""
        return self.makespan if self.span is None else self.span

    def to_json(self) -> dict[str, Any]:
        """The figures as plain data; with the span if spans are compared."""
        return {key: value for key, value in asdict(self).items() if key != "span" or value is not None}


@dataclass(frozen=True)
class Comparison(Tabular):
    """The result of :func:`weft.compare`. ``schedules`` has every row's schedule, by the row's name; ``left_out`` the
    reasons for missing known schedules. ``with_adam``: for a spec with AdamA, weft's schedule for the same spec with
    Adam, or the reason why nothing fits. ``str()`` is the table."""

    case: Case
    rows: tuple[ComparisonRow, ...]
    schedules: Mapping[str, Schedule]
    left_out: Mapping[str, str]
    with_adam: Schedule | str | None = None

    @property
    def weft(self) -> Schedule:
        """weft's own schedule."""
        return self.schedules["weft"]

    @property
    def best_fixed(self) -> str | None:
        """The name of the fastest schedule that fits (or of all, if none does), excluding searches."""
        published = [row for row in self.rows if row.name != "weft" and row.name not in SEARCHES]
        return min(published, key=lambda row: (not row.fits, row.value)).name if published else None

    def to_json(self) -> dict[str, Any]:
        """The numbers as plain data."""
        problem = self.weft.problem
        adam = self.with_adam
        return {"name": self.case.name, "micro_batches": self.case.micro_batches, "time_unit": problem.time_unit,
                "memory_unit": problem.memory_unit, "placements": self.case.coverage.to_json(),
                "rows": [row.to_json() for row in self.rows],
                "left_out": dict(self.left_out),
                **({} if adam is None else {"with_adam": {"infeasible": adam} if isinstance(adam, str) else
                                            _row("weft", adam).to_json()})}

    def table(self) -> Any:
        """The table, to be printed by rich."""
        problem = self.weft.problem
        time_unit, memory_unit = time_text(1.0, problem.time_unit)[1], memory_text(1, problem.memory_unit)[1]
        told = self.weft.solver.get("grid", {})
        gpus = told.get("gpus") or sum(device.lane_of is None for device in problem.devices)
        step = "ms per step" if time_unit == "ms" else f"makespan, {time_unit}"
        spans = ["span"] if any(row.span is not None for row in self.rows) else []
        texts = ("schedule", "placement")
        steady = ["bubble: steady"] if any(row.bubble_steady is not None for row in self.rows) else []
        table = table_of(f"{self.case.name}: {micro_batches_text(self.weft)}, {gpus} GPUs", (
            *texts, step, *spans, *steady, "step" if steady else "bubble: step", "span", f"peak {memory_unit} per GPU",
            "fits"), texts, self.caption())
        for row in self.rows:
            devices = self.schedules[row.name].problem.devices  # lanes beside them differ from row to row
            table.add_row(
                row.title, row.placement, time_text(row.makespan, problem.time_unit)[0],
                *(time_text(row.value, problem.time_unit)[0] for _ in spans),
                *("-" if row.bubble_steady is None else f"{row.bubble_steady:.1%}" for _ in steady),
                f"{row.bubble_step:.1%}", f"{row.bubble_span:.1%}",
                each_text([amount for amount, device in zip(row.peak, devices, strict=True) if device.lane_of is None],
                          problem.memory_unit),
                "yes" if row.fits else "no", style="bold" if row.name == "weft" else None)
        return table

    def caption(self) -> str:
        """One line a fact: weft's bound and gap, its difference to the best known schedule, omissions."""
        own, over = next(row for row in self.rows if row.name == "weft"), self.case.coverage.text()
        unit = self.weft.problem.time_unit
        bound = " ".join(time_text(own.bound or 0.0, unit))
        of = "lower bound" if own.span is None else "lower bound on the span"
        proof = "proven optimal" if own.gap == 0 else f"gap at most {own.gap:.2%}"
        lines = [*grid_lines(self.weft), f"weft: {of} {bound}, {proof}" + (" for this placement" if over else "")]
        if own.bound_over_placements is not None:
            proof = ("proven optimal" if own.value <= own.bound_over_placements * (1 + 1e-9) else
                     "lower bound " + " ".join(time_text(own.bound_over_placements, unit)))
            beyond = self.weft.solver.get("bound_over_any_placement", 0.0) >= own.value * (1 - 1e-9)
            lines.append(f"{proof} over {over}; " + ("no other placement is faster" if beyond else others(over)))
        elif over:
            lines.append(f"that is over {over}; {others(over)}")
        if self.weft.choices:
            lines.append(f"weft: {choices_text(self.weft)}")
        if decided := plan_text(self.weft):
            lines.append(f"weft: {decided}")
        published = next((row for row in self.rows if row.name == self.best_fixed), None)
        if published is not None and not published.fits:
            lines.append("no fixed schedule fits")
            published = None
        rivals = [] if published is None else [(f"the best fixed schedule that fits ({published.title})", published)]
        rivals += [(SEARCHES[row.name], row) for row in self.rows if row.name in SEARCHES and row.fits]
        for what, rival in rivals:
            change = own.value / rival.value - 1
            lines.append(f"against {what}: " + ("a tie" if abs(change) < 5e-5 else f"{change:+.1%} time per step"))
        if isinstance(self.with_adam, str):
            lines.append(f"with Adam in place of AdamA nothing fits: {self.with_adam}")
        elif self.with_adam is not None:
            change, step = own.value / self.with_adam.value - 1, time_text(self.with_adam.value, unit)
            lines.append(f"against weft with Adam in place of AdamA ({' '.join(step)}): "
                         + ("a tie" if abs(change) < 5e-5 else f"{change:+.1%} time per step"))
        alike: dict[str, list[str]] = {}
        for name, reason in self.left_out.items():
            alike.setdefault(reason, []).append(BASELINES[name].title)
        lines += [f"{', '.join(titles)} left out: {reason}" for reason, titles in alike.items()]
        return "\n".join(lines)


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
        told = {**grid.solver["grid"], **own.solver["grid"]}
        own = grid if grid.solver["grid"]["step"] <= told["step"] else own.with_solver(grid=told)
    schedules = {name: case.with_reserve(entry) for name, entry in {**known, "weft": own}.items()}
    adam: Schedule | str | None = None
    if twin is not None and own.solver.get("optimizer") == "adama" and not own.solver.get("interrupted"):
        try:
            adam = solve_source(twin, micro_batches, options)
        except Infeasible as refusal:
            adam = str(refusal)
    return Comparison(case, tuple(_row(name, schedule) for name, schedule in schedules.items()), schedules, left_out,
                      adam)


def _with_adam(source: Problem | WideProblem | Spec) -> Spec | None:
    """The same with Adam in place of AdamA; nothing for a spec without AdamA."""
    if isinstance(source, Problem | WideProblem) or source.training is None or source.training.optimizer != "adama":
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
            if name not in known or (not _fits(known[name]), known[name].makespan) > (False, entry.schedule.makespan):
                known = {**known, name: entry.labelled}
    return _in_order(known, left_out)


def _better(on_progress: Callable[[Progress], None], known: Mapping[str, Schedule]) -> Callable[[Progress], None]:
    """A listener that is notified only of improvements on the best of ``known``, which was reported already."""
    told = min((schedule.value for schedule in known.values() if _fits(schedule)), default=math.inf)

    def heard(progress: Progress) -> None:
        if progress.best.value <= told * (1 + RELATIVE_TOLERANCE):
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
            if best is None or (not _fits(schedule), schedule.value) < (not _fits(best), best.value):
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
            found.append(Known(placement, schedule, _fits(schedule)))
    return found, reason


def _row(name: str, schedule: Schedule) -> ComparisonRow:
    bubble = schedule.bubble
    static = schedule.solver.get("static_memory") or [0] * len(schedule.problem.devices)
    own = name == "weft"
    return ComparisonRow(
        name, "weft" if own else BASELINES[name].title, str(schedule.solver.get("placement", "")), schedule.makespan,
        bubble.steady, bubble.step, bubble.span,
        tuple(base + peak for base, peak in zip(static, schedule.peak_memory, strict=True)), _fits(schedule),
        bound=schedule.value_bound if own else None,
        gap=schedule.value_gap if own else None,
        bound_over_placements=schedule.solver.get("bound_over_placements") if own else None,
        span=schedule.value if schedule.objective == "span" else None,
    )


def _fits(schedule: Schedule) -> bool:
    """Whether its memory also passes the judge, which has accepted everything else."""
    return not violations(schedule, limit=1)
