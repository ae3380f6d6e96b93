"""Collectives beside computation: a spec's placements with the options of their collectives, beside those without.

First the placements without overlap, as ``weft solve`` searches them; then those that have options: the whole model on
every GPU, and groups of GPUs that compute layers together, their micro-batches one by one or in pairs. Of these the
ones with the least bounds are searched, as far as they may be better than the best schedule so far: each first without
overlap, then with all its options, so that no answer is worse than the one without on the same placement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from weft.app.lib.case import Case, case_of, read_source
from weft.app.lib.coverage import cut_of_details
from weft.app.lib.domination import undominated
from weft.app.lib.options import SearchOptions
from weft.app.lib.verdicts import Searched, choice, shape_placement_details
from weft.app.solve import solve_case
from weft.models.overlap.data_parallel import data_parallel, why_not_data_parallel
from weft.models.overlap.placement import OverlapPlacement
from weft.models.overlap.together import overlap_of
from weft.models.overlap.ways import Ways
from weft.models.spec.sections import Spec
from weft.models.tensor_parallel.shapes import together
from weft.solver.choices.relaxed.loads import load_bound
from weft.solver.choices.solve import solve_wide
from weft.solver.control.clock import OutOfTime
from weft.solver.feasibility.infeasible import Infeasible, NoneFound
from weft.solver.judge.choice_rules import violations_of_choice
from weft.solver.judge.validate import InvalidSchedule, violations
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.solver.step.search import Progress
from weft.solver.wide.problem import WideProblem
from weft.solver.wide.run import Run

if TYPE_CHECKING:
    from weft.app.lib.sources import MicroBatches, Source

__all__ = ["solve_overlapped"]

#: The share of the time for placements without overlap, and of what a placement gets for its answer without.
_PLAIN, _BARE = 0.4, 0.3
#: So many placements with options are searched; of the others their bound is told.
_MOST = 4


def solve_overlapped(source: Source, micro_batches: MicroBatches | None, options: SearchOptions,
                     on_progress: Callable[[Progress], None] = lambda _: None) -> Schedule:
    """The best schedule of a spec, collectives beside computation where that is better.

    ``solver["overlap"]`` says what overlap brings: of the placement chosen the best ``without`` and ``with`` it, and
    the ``bound``; or, as ``nothing``, why there is nothing to overlap.

    Raises ``ValueError`` for a source or an objective without overlap to search, and what :func:`weft.solve` does.
    """
    spec = _spec(source, options)
    with options.preparing():
        case = None if set(spec.placement.shapes) == {"data"} else case_of(spec, micro_batches, options)
    count = micro_batches if isinstance(micro_batches, int) else spec.micro_batches
    return _Search(spec, case, count, options, on_progress).result()


def _spec(source: Source, options: SearchOptions) -> Spec:
    """What ``source`` is, where its collectives are known."""
    spec = read_source(source)
    if not isinstance(spec, Spec):
        raise ValueError(f"{spec.name}: overlap is for a model spec, whose collectives are known; in a block problem "
                         "they are blocks on lanes, and their options choices (see weft schema): leave overlap out")
    if spec.training is not None and spec.training.lengths is not None:
        raise ValueError(f"{spec.where}: training.lengths lists micro-batches that differ, and overlap is searched "
                         "for those that are alike: leave one of them out")
    if options.objective not in ("makespan", "span"):
        raise ValueError(f"objective is {options.objective!r}, and overlap is searched for makespan or span: give one "
                         "of these, or leave overlap out")
    return spec


@dataclass(frozen=True)
class _Open:
    """A placement with options, the run of it, and what no schedule of it is below by its devices' work."""

    placement: OverlapPlacement
    title: str
    details: Mapping[str, Any]
    run: Run
    least: float


class _Search:
    """Placements looked at one after another, and what is known of each so far."""

    def __init__(self, spec: Spec, case: Case | None, count: int, options: SearchOptions,
                 on_progress: Callable[[Progress], None]) -> None:
        self.spec, self.case, self.count, self.options = spec, case, count, options
        self.on_progress = on_progress
        self.best: Schedule | None = None
        self.plain: Schedule | None = None
        self.refusals: list[Infeasible] = []
        self.rows: list[Searched] = []
        self.reason = ""
        self.interrupted = False

    def result(self) -> Schedule:
        """The best schedule, with what overlap brings."""
        self._look_at_plain()
        with self.options.preparing():
            queue = sorted(self._open(), key=lambda entry: entry.least)
        searched = 0
        for place, entry in enumerate(queue):
            if (self.interrupted or searched >= _MOST or entry.least >= self.value * (1 - RELATIVE_TOLERANCE)
                    or (self.best is not None and self.options.left <= 1e-3)):
                self.rows.append(Searched(entry.title, entry.least, None, False, "",
                                          cut_of_details(dict(entry.details))))
                continue
            searched += 1
            self._look_at(entry, 1 / min(_MOST, len(queue) - place))
        return self._told(bool(queue))

    @property
    def value(self) -> float:
        """What the best schedule so far comes to."""
        return math.inf if self.best is None else self.best.value

    # -- without options

    def _look_at_plain(self) -> None:
        if self.case is None:
            return
        try:
            found = solve_case(self.case, self._limited(_PLAIN), self.on_progress)
        except Infeasible as refusal:
            self.refusals.append(refusal)
            return
        self.plain = self.best = found
        self.interrupted = bool(found.solver.get("interrupted"))

    # -- with options

    def _open(self) -> Iterator[_Open]:
        """The placements with options."""
        shapes = self.spec.placement.shapes
        if "data" in shapes or "shapes" not in self.spec.placement.model_fields_set:
            why = why_not_data_parallel(self.spec, self.count)
            if why is None:
                placement = data_parallel(self.spec, self.count)
                yield self._entry(placement, placement.title, {"placement": placement.title})
            else:
                self.reason = f"the whole model cannot be on every GPU ({why})"
        yield from self._together()

    def _together(self) -> Iterator[_Open]:
        try:
            found = together(self.spec) if self.spec.placement.cut is None else None
        except OutOfTime:
            return
        if found is None:
            return
        space, candidates, _ = found
        ways: dict[tuple[str, bool], Ways] = {}
        for candidate in undominated(candidates):
            for pairs in (False, True):
                if candidate.replicas > 1 or (pairs and (self.count % 2 or self.count < 2)):
                    continue
                known = ways.setdefault((candidate.backward, pairs), Ways(space, candidate.backward, pairs=pairs))
                try:
                    placement = overlap_of(known, candidate)
                except OutOfTime:
                    return
                if placement is not None:
                    title, details = shape_placement_details(candidate, space)
                    title += ", in pairs" if pairs else ""
                    yield self._entry(placement, title, {**details, "placement": title})

    def _entry(self, placement: OverlapPlacement, title: str, details: Mapping[str, Any]) -> _Open:
        run = Run.of(placement.problem, self.count // placement.micro_batches)
        notes = [*placement.notes, *details.get("notes", ())]
        if placement.micro_batches > 1:
            notes.append(f"{placement.micro_batches} micro-batches of the spec are one of this schedule"
                         + (", in pairs" if placement.micro_batches < self.count else ": the step of all GPUs"))
        return _Open(placement, title, {**placement.details, **details, **({"notes": list(dict.fromkeys(notes))}
                                                                          if notes else {})},
                     run, load_bound(placement.problem, run, self.options.objective))

    def _look_at(self, entry: _Open, share: float) -> None:
        """A placement without overlap, then with all its options, for ``share`` of what is left."""
        limits = self._limited(share)
        bare, refusal = None, None
        for options in entry.placement.bare:
            found = self._solved(entry, entry.placement.problem.under(options), limits, _BARE)
            if isinstance(found, Infeasible):
                refusal = found
            elif bare is None or found.value < bare.value:
                bare = replace(found, choices={**options, **found.choices})
        best = self._solved(entry, entry.placement.problem, limits, 1 - _BARE)
        if isinstance(best, Infeasible):
            if bare is None:
                self.refusals.append(best)
                bound = 0.0 if isinstance(best, NoneFound) else math.inf
                self.rows.append(Searched(entry.title, max(entry.least, bound if math.isfinite(bound) else 0.0), None,
                                          False, str(best), cut_of_details(dict(entry.details))))
                return
            best = bare
        bound = max(entry.least, best.value_bound)
        if bare is not None and bare.value < best.value:
            best = bare.with_value_bound(min(bound, bare.value))
        self._take(entry, best, bare, refusal, min(bound, best.value))

    def _solved(self, entry: _Open, problem: WideProblem, limits: SearchOptions, share: float
                ) -> Schedule | Infeasible:
        """The best schedule of ``problem``, the placement's or one with fewer options, or why there is none."""
        own = limits.shortened(share)
        effort = None if limits.effort is None else limits.effort * share
        try:
            found = solve_wide(problem, entry.run, objective=self.options.objective, on_progress=self._heard(entry),
                               time_limit=own.left, effort=effort, seed=own.seed, workers=own.workers)
        except Infeasible as refusal:
            return refusal
        self.interrupted |= bool(found.solver.get("interrupted"))
        return found

    def _take(self, entry: _Open, found: Schedule, bare: Schedule | None, refusal: Infeasible | None, bound: float
              ) -> None:
        """``found``, judged, where it is better than the best; and what overlap brings there."""
        faults = [*violations(found), *violations_of_choice(found, entry.placement.problem)]
        if faults:
            raise InvalidSchedule(faults)
        is_best = found.value < self.value * (1 - RELATIVE_TOLERANCE)
        self.rows.append(Searched(entry.title, bound, found.makespan, is_best, "",
                                  cut_of_details(dict(entry.details))))
        if not is_best:
            return
        self.rows = [replace(row, chosen=row is self.rows[-1]) for row in self.rows]
        told = {"without": None if bare is None else bare.value, "with": found.value, "bound": bound,
                **({"why_not_without": str(refusal)} if bare is None and refusal is not None else {})}
        self.best = replace(found, problem=entry.placement.on_every_gpu(found.problem)).with_solver(
            **entry.details, overlap=told)

    # -- what is said

    def _told(self, has_open: bool) -> Schedule:
        if self.best is None:
            raise next((refusal for refusal in self.refusals if isinstance(refusal, NoneFound)), self.refusals[0])
        if not has_open:
            why = f", and {self.reason}" if self.reason else ""
            return self.best.with_solver(overlap={"nothing": (
                "what stages of one GPU each send runs beside their computation already" + why)})
        rows = [*self._plain_rows(), *self.rows]
        plain = None if self.plain is None else self.plain.value
        bound = min([self.best.value, *(row.bound for row in self.rows if not row.refusal),
                     *([] if self.plain is None else [float(self.plain.solver.get(
                         "bound_over_placements", self.plain.value_bound))])])
        told = {**(self.best.solver.get("overlap") or {"taken": False}), "best_without_options": plain,
                "bound_over_placements": bound}
        solver = {key: value for key, value in self.best.solver.items() if key not in (
            "bound_over_any_placement", "covered")}
        return replace(self.best, solver=solver).with_solver(
            placements=len(rows), bound_over_placements=bound, overlap=told,
            **choice(rows, () if self.case is None else self.case.refused, self.best.makespan, None),
            **({"interrupted": True} if self.interrupted else {}))

    def _plain_rows(self) -> list[Searched]:
        """What is told of the placements without options."""
        if self.plain is None:
            return []
        chosen = self.plain is self.best
        told = self.plain.solver.get("alternatives")
        if not isinstance(told, list):
            assert self.case is not None
            placement = self.case.placements[0]
            return [Searched(placement.title, self.plain.value_bound, self.plain.makespan, chosen, "",
                             cut_of_details(placement.details))]
        return [Searched(row["placement"], row["bound"], row["makespan"], chosen and row["verdict"] == "chosen",
                         row.get("reason", ""), tuple(row["cut"])) for row in told if row["verdict"] != "none"]

    def _limited(self, share: float) -> SearchOptions:
        """The options with ``share`` of what is left."""
        if self.options.effort is None:
            return self.options.shortened(share)
        return replace(self.options, effort=self.options.effort * share)

    def _heard(self, entry: _Open) -> Callable[[Progress], None]:
        """A listener that hears of nothing worse than the best so far."""
        def heard(progress: Progress) -> None:
            if progress.best.value < self.value:
                self.on_progress(replace(progress, best=progress.best.with_solver(placement=entry.title)))

        return heard
