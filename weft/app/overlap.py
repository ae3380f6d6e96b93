"""Collectives beside computation: a spec's placements with the options of their collectives, beside those without.

First the placements without overlap, as ``weft solve`` searches them; then those that have options: the whole model on
every GPU, and groups of GPUs that compute layers together, their micro-batches one by one or in pairs. Of these the
ones with the least bounds are searched, as far as they may be better than the best schedule so far: each with all its
options and, where that is better, without overlap too, so that no answer is worse than the one without on the same
placement. Where an effort limits the search, the placements without overlap have all of it, as they would alone, and
those with overlap as much again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from weft.app.lib.case import Case, case_of, read_source
from weft.app.lib.coverage import cut_of_details
from weft.app.lib.options import SearchOptions
from weft.app.lib.overlap_listing import IN_PAIRS, Listing, OpenOverlap
from weft.app.lib.placements import by_device
from weft.app.lib.verdicts import Searched, choice
from weft.app.solve import solve_case
from weft.models.overlap.data_parallel import WHOLE_MODEL, why_not_data_parallel
from weft.models.spec.sections import Spec
from weft.models.spec.spec import SpecError
from weft.solver.choices.solve import solve_wide
from weft.solver.control.stopping import breakable
from weft.solver.feasibility.infeasible import Infeasible, NoneFound
from weft.solver.judge.choice_rules import violations_of_choice
from weft.solver.judge.validate import InvalidSchedule, violations
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.solver.step.search import Progress
from weft.solver.wide.problem import WideProblem

if TYPE_CHECKING:
    from weft.app.lib.sources import MicroBatches, Source

__all__ = ["solve_overlapped"]

#: Shapes that are no placements, and why.
_Refused: TypeAlias = Sequence[tuple[str, str]]

#: The share of the time for placements without overlap, and of what a placement gets for its answer without.
_PLAIN, _BARE = 0.4, 0.3
#: With less than this share of the time left no other placement is begun.
_TOO_LITTLE = 0.1
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
        case, refused = _case(spec, micro_batches, options)
    if not isinstance(micro_batches, int | None):
        raise ValueError("micro_batches names jobs or classes, and this problem has none: give a number")
    count = spec.micro_batches if micro_batches is None else micro_batches
    return _OverlapSearch(spec, case, refused, count, options, on_progress).result()


def _spec(source: Source, options: SearchOptions) -> Spec:
    """What ``source`` is, where its collectives are known."""
    spec = read_source(source)
    if not isinstance(spec, Spec):
        raise ValueError(f"{spec.name}: overlap is for a model spec, whose collectives are known; in a block problem "
                         "they are blocks on lanes, and their options choices (see weft schema): leave overlap out")
    if spec.training is not None and spec.training.lengths is not None:
        raise ValueError(f"{spec.where}: training.lengths lists micro-batches that differ, and overlap is searched "
                         "for those that are alike: leave one of them out")
    if options.objective not in ("makespan", "span", "rate"):
        raise ValueError(f"objective is {options.objective!r}, and overlap is searched for makespan, span or rate: "
                         "give one of these, or leave overlap out")
    return spec


def _case(spec: Spec, micro_batches: MicroBatches | None, options: SearchOptions) -> tuple[Case | None, _Refused]:
    """The placements without options; where the model cannot be cut into stages, but be on every GPU, shapes and why
    instead."""
    if set(spec.placement.shapes) == {"data"}:
        return None, ()
    try:
        case = case_of(spec, micro_batches, options)
        return case, case.refused
    except SpecError as error:
        asked = "data" in spec.placement.shapes or {"shapes", "cut"}.isdisjoint(spec.placement.model_fields_set)
        count = micro_batches if isinstance(micro_batches, int) else None
        if not asked or options.objective == "rate" or why_not_data_parallel(spec, count) is not None:
            raise
        others = [shape for shape in spec.placement.shapes if shape != "data"]
        return None, ((", ".join(others), str(error)),)


class _OverlapSearch:
    """Placements looked at one after another, and what is known of each so far."""

    def __init__(self, spec: Spec, case: Case | None, refused: _Refused, count: int, options: SearchOptions,
                 on_progress: Callable[[Progress], None]) -> None:
        self.refused = refused
        self.spec, self.case, self.count, self.options = spec, case, count, options
        self.on_progress = on_progress
        self.best: Schedule | None = None
        self.plain: Schedule | None = None
        self.refusals: list[Infeasible] = []
        self.rows: list[Searched] = []
        self.listing = Listing(spec, case, count, options.objective)
        self.interrupted = self.plain_is_open = False

    def result(self) -> Schedule:
        """The best schedule, with what overlap brings."""
        with self.options.preparing():
            may_find = self.listing.may_find
        self._look_at_plain(_PLAIN if may_find else 1.0)
        queue = self._listed()
        self._know_singles(queue)
        searched = 0
        for place, entry in enumerate(queue):
            if (self.interrupted or searched >= _MOST or entry.least >= self.value * (1 - RELATIVE_TOLERANCE)
                    or (self.best is not None and self.options.left <= _TOO_LITTLE * self.options.time_limit)):
                self._tell(entry, entry.least, None)
                continue
            searched += 1
            self._look_at(entry, 1 / min(_MOST, len(queue) - place))
        return self._told(queue)

    @property
    def value(self) -> float:
        """What the best schedule so far comes to."""
        return math.inf if self.best is None else self.best.value

    def _listed(self) -> list[OpenOverlap]:
        """The placements with options, as far as there is time to list them; none after a stop."""
        if self.interrupted:
            return []
        queue: list[OpenOverlap] = []
        try:
            with breakable(), replace(self.options.restarted(), time_limit=self.options.left).preparing():
                queue.extend(self.listing.entries())
        except KeyboardInterrupt:
            if self.best is None:
                raise
            self.interrupted = True
        return queue

    @property
    def elapsed(self) -> float:
        """Seconds since the command began: each search has a clock of its own, which begins later."""
        return time.monotonic() - self.options.started

    # -- without options

    def _look_at_plain(self, share: float) -> None:
        """The placements without options, for ``share`` of the time."""
        if self.case is None:
            return
        try:
            limits = self.options if self.options.effort is not None else self.options.limited(share)
            found = solve_case(self.case, limits, self.on_progress)
        except Infeasible as refusal:
            self.refusals.append(refusal)
            self.plain_is_open = isinstance(refusal, NoneFound)
            return
        self.plain = self.best = found
        self.interrupted = bool(found.solver.get("interrupted"))

    def _know_singles(self, queue: list[OpenOverlap]) -> None:
        """Put what the placements without options came to beside those with, and the likely best first."""
        known = {_key(row): self._value_of(row) or row.bound for row in self._plain_rows()}
        for place, entry in enumerate(queue):
            queue[place] = replace(entry, single=known.get(_single_of(entry)))
        queue.sort(key=lambda entry: entry.rank)

    # -- with options

    def _look_at(self, entry: OpenOverlap, share: float) -> None:
        """A placement with all its options and, where that is better than the best, without overlap too, for ``share``
        of what is left."""
        limits = self.options.limited(share)
        found = self._solved(entry, entry.placement.problem, limits, 1 - _BARE)
        if isinstance(found, Infeasible):
            self.refusals.append(found)
            self._tell(entry, entry.least, None, "" if isinstance(found, NoneFound) else str(found))
            return
        bound = max(entry.least, found.value_bound)
        if found.value >= self.value * (1 - RELATIVE_TOLERANCE):
            self._tell(entry, bound, found.makespan)
            return
        bare, nothing_fits = self._bare(entry, limits)
        best = found if bare is None or found.value <= bare.value else bare
        self._take(entry, best, bare, min(bound, best.value), nothing_fits=nothing_fits)

    def _bare(self, entry: OpenOverlap, limits: SearchOptions) -> tuple[Schedule | None, bool]:
        """The best schedule of the placement without overlap, none after a stop, and whether it is proven that nothing
        fits without."""
        best, nothing_fits = None, not self.interrupted
        for options in () if self.interrupted else entry.placement.bare:
            found = self._solved(entry, entry.placement.problem.under(options), limits, _BARE)
            nothing_fits &= isinstance(found, Infeasible) and not isinstance(found, NoneFound)
            if not isinstance(found, Infeasible) and (best is None or found.value < best.value):
                best = replace(found, choices={**options, **found.choices})
        return best, nothing_fits

    def _solved(self, entry: OpenOverlap, problem: WideProblem, limits: SearchOptions, share: float
                ) -> Schedule | Infeasible:
        """The best schedule of ``problem``, the placement's or one with fewer options, or why there is none."""
        own = limits.limited(share)
        try:
            found = solve_wide(problem, entry.run, objective=self.options.objective, on_progress=self._heard(entry),
                               time_limit=own.left, effort=own.effort, seed=own.seed, workers=own.workers)
        except Infeasible as refusal:
            return refusal
        except ValueError as error:  # a steady state that does not appear in so few micro-batches
            if self.options.objective != "rate":
                raise
            return NoneFound(str(error))
        self.interrupted |= bool(found.solver.get("interrupted"))
        return found

    def _tell(self, entry: OpenOverlap, bound: float, makespan: float | None, refusal: str = "", *,
              is_best: bool = False) -> None:
        """What is known of a placement, for the list of all."""
        if is_best:
            self.rows = [replace(row, chosen=False) for row in self.rows]
        self.rows.append(Searched(entry.title, bound, makespan, is_best, refusal, cut_of_details(dict(entry.details))))

    def _take(self, entry: OpenOverlap, found: Schedule, bare: Schedule | None, bound: float, *,
              nothing_fits: bool) -> None:
        """``found``, judged, which is better than the best; and what overlap brings there."""
        faults = [*violations(found), *violations_of_choice(found, entry.placement.problem)]
        if faults:
            raise InvalidSchedule(faults)
        self._tell(entry, bound, found.makespan, is_best=True)
        without = [value for value in (None if bare is None else bare.value, self._found_plain(entry))
                   if value is not None]
        problem = entry.placement.on_every_gpu(found.problem)
        unit = {} if entry.unit is None else {"unit": entry.unit}
        self.best = replace(found.with_value_bound(bound), problem=problem).with_solver(
            **by_device(entry.details, problem), **unit, overlap={
                "taken": True, "without": min(without, default=None), "with": found.value, "bound": bound,
                **({"nothing_fits": nothing_fits} if not without else {})})

    def _found_plain(self, entry: OpenOverlap) -> float | None:
        """What the placement came to among those without options."""
        found = [self._value_of(row) for row in self._plain_rows() if _key(row) == _single_of(entry)]
        return min((value for value in found if value is not None), default=None)

    def _value_of(self, row: Searched) -> float | None:
        """What a placement without options came to, of what is searched for: rows have makespans."""
        if self.options.objective == "makespan" or self.plain is None:
            return row.makespan
        return self.plain.value if (row.placement, row.cut) == self._plain_chosen else None

    # -- what is said

    def _told(self, queue: Sequence[OpenOverlap]) -> Schedule:
        if self.best is None and not self.refusals:
            if self.listing.late:
                raise NoneFound(f"{self.spec.name}: the time limit is too short to list its placements with overlap")
            raise Infeasible(f"{self.spec.name}: {self.listing.reason}")
        if self.best is None:
            raise next((refusal for refusal in self.refusals if isinstance(refusal, NoneFound)), self.refusals[0])
        if not queue and self.interrupted:
            return self.best.with_solver(interrupted=True, overlap={
                "not_searched": "the search was stopped before what may overlap was listed"})
        if not queue and self.listing.late:
            return self.best.with_solver(overlap={
                "not_searched": "there was no time to list what may overlap; give more time"})
        if not queue:
            why = f", and {self.listing.reason}" if self.listing.reason else ""
            return self.best.with_solver(overlap={"nothing": (
                "what stages of one GPU each send runs beside their computation already" + why)})
        rows = [*self._plain_rows(), *self.rows]
        known = [] if self.plain is None else [self.plain.value]
        told = self.best.solver.get("overlap") or {}
        known += [told["without"]] if told.get("without") is not None else []
        bound = min([self.best.value, *(row.bound for row in self.rows if not row.refusal), self._plain_bound()])
        value = self.best.value
        update = max(entry.placement.update for entry in queue)
        told = {"taken": False, "without": value, "with": value, "bound": self.best.value_bound,
                **told, "best_without_options": min(known, default=None),
                "bound_over_placements": bound,
                **({"update": update} if update else {}),
                **(self.listing.frameworks if self.best.solver.get("unit") == "step" else {})}
        solver = {key: value for key, value in self.best.solver.items() if key != "bound_over_any_placement"}
        return replace(self.best, solver=solver).with_solver(
            placements=len(rows), bound_over_placements=bound, overlap=told, seconds=round(self.elapsed, 3),
            **choice(rows, self.refused, self.best.value, None), **({"interrupted": True} if self.interrupted else {}))

    def _plain_bound(self) -> float:
        """What no schedule without options is below: nothing is known where none was found and may be."""
        if self.plain is not None:
            return float(self.plain.solver.get("bound_over_placements", self.plain.value_bound))
        return 0.0 if self.plain_is_open else math.inf

    def _plain_rows(self) -> list[Searched]:
        """What is told of the placements without options."""
        if self.plain is None:
            return []
        chosen = self.plain is self.best
        told = self.plain.solver.get("alternatives")
        if not isinstance(told, list):
            assert self.case is not None
            placement = (*self.case.placements, *self.case.whole_model)[0]
            return [Searched(placement.title, self.plain.value_bound, self.plain.makespan, chosen, "",
                             cut_of_details(placement.details))]
        return [Searched(row["placement"], row["bound"], row["makespan"], chosen and row["verdict"] == "chosen",
                         row.get("reason", ""), tuple(row["cut"])) for row in told if row["verdict"] != "none"]

    @property
    def _plain_chosen(self) -> tuple[str, tuple[int, ...]] | None:
        """The key of the best placement without options, where there are several."""
        told = None if self.plain is None else self.plain.solver.get("alternatives")
        if not isinstance(told, list):
            return next(((row.placement, row.cut) for row in self._plain_rows()), None)
        return next(((row["placement"], tuple(row["cut"])) for row in told if row["verdict"] == "chosen"), None)

    def _heard(self, entry: OpenOverlap) -> Callable[[Progress], None]:
        """A listener that hears of nothing worse than the best so far."""
        def heard(progress: Progress) -> None:
            if progress.best.value < self.value:
                self.on_progress(replace(progress, best=progress.best.with_solver(placement=entry.title),
                                         elapsed=self.elapsed))

        return heard


def _key(row: Searched) -> tuple[str, tuple[int, ...]]:
    """The title and the cut; of the whole model on every GPU however its gradients are summed."""
    title = row.placement
    return (WHOLE_MODEL if title.startswith(f"{WHOLE_MODEL}, ") else title), row.cut


def _single_of(entry: OpenOverlap) -> tuple[str, tuple[int, ...]]:
    """The key of the same placement without options, its micro-batches one by one."""
    return entry.title.removesuffix(IN_PAIRS), cut_of_details(dict(entry.details))
