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
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weft.app.lib.case import Case, case_of, read_source
from weft.app.lib.coverage import cut_of_details
from weft.app.lib.options import SearchOptions
from weft.app.lib.overlap_listing import IN_PAIRS, Listing, OpenOverlap
from weft.app.lib.verdicts import Searched, choice
from weft.app.solve import solve_case
from weft.models.spec.sections import Spec
from weft.solver.choices.solve import solve_wide
from weft.solver.feasibility.infeasible import Infeasible, NoneFound
from weft.solver.judge.choice_rules import violations_of_choice
from weft.solver.judge.validate import InvalidSchedule, violations
from weft.solver.problem import Problem
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.solver.step.search import Progress
from weft.solver.wide.problem import WideProblem

if TYPE_CHECKING:
    from weft.app.lib.sources import MicroBatches, Source

__all__ = ["solve_overlapped"]

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
        case = None if set(spec.placement.shapes) == {"data"} else case_of(spec, micro_batches, options)
    if not isinstance(micro_batches, int | None):
        raise ValueError("micro_batches names jobs or classes, and this problem has none: give a number")
    count = spec.micro_batches if micro_batches is None else micro_batches
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
    if options.objective not in ("makespan", "span", "rate"):
        raise ValueError(f"objective is {options.objective!r}, and overlap is searched for makespan, span or rate: "
                         "give one of these, or leave overlap out")
    return spec


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
        self.listing = Listing(spec, case, count, options.objective)
        self.interrupted = False

    def result(self) -> Schedule:
        """The best schedule, with what overlap brings."""
        left = self.options.left
        with replace(self.options.restarted(), time_limit=left).preparing():
            queue = list(self.listing.entries())
        self._look_at_plain()
        self._know_singles(queue)
        searched = 0
        for place, entry in enumerate(queue):
            if (self.interrupted or searched >= _MOST or entry.least >= self.value * (1 - RELATIVE_TOLERANCE)
                    or (self.best is not None and self.options.left <= _TOO_LITTLE * self.options.time_limit)):
                self._tell(entry, entry.least, None)
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
            limits = self.options if self.options.effort is not None else self._limited(_PLAIN)
            found = solve_case(self.case, limits, self.on_progress)
        except Infeasible as refusal:
            self.refusals.append(refusal)
            return
        self.plain = self.best = found
        self.interrupted = bool(found.solver.get("interrupted"))

    def _know_singles(self, queue: list[OpenOverlap]) -> None:
        """Put what the placements without options came to beside those with, and the likely best first."""
        known = {(row.placement, row.cut): row.makespan or row.bound for row in self._plain_rows()}
        for place, entry in enumerate(queue):
            title = entry.title.removesuffix(IN_PAIRS)
            queue[place] = replace(entry, single=known.get((title, cut_of_details(dict(entry.details)))))
        queue.sort(key=lambda entry: entry.rank)

    # -- with options

    def _look_at(self, entry: OpenOverlap, share: float) -> None:
        """A placement with all its options and, where that is better than the best, without overlap too, for ``share``
        of what is left."""
        limits = self._limited(share)
        found = self._solved(entry, entry.placement.problem, limits, 1 - _BARE)
        if isinstance(found, Infeasible):
            self.refusals.append(found)
            self._tell(entry, entry.least, None, str(found))
            return
        bound = max(entry.least, found.value_bound)
        if found.value >= self.value * (1 - RELATIVE_TOLERANCE):
            self._tell(entry, bound, found.makespan)
            return
        bare = self._bare(entry, limits)
        best = found if bare is None or found.value <= bare.value else bare
        self._take(entry, best, bare, min(bound, best.value))

    def _bare(self, entry: OpenOverlap, limits: SearchOptions) -> Schedule | None:
        """The best schedule without overlap, of the placement or of the one that its pairs are of."""
        best = None
        for options in entry.placement.bare:
            found = self._solved(entry, entry.placement.problem.under(options), limits, _BARE)
            if not isinstance(found, Infeasible) and (best is None or found.value < best.value):
                best = replace(found, choices={**options, **found.choices})
        return best

    def _solved(self, entry: OpenOverlap, problem: WideProblem, limits: SearchOptions, share: float
                ) -> Schedule | Infeasible:
        """The best schedule of ``problem``, the placement's or one with fewer options, or why there is none."""
        own = limits.shortened(share)
        effort = None if limits.effort is None else limits.effort * share
        try:
            found = solve_wide(problem, entry.run, objective=self.options.objective, on_progress=self._heard(entry),
                               time_limit=own.left, effort=effort, seed=own.seed, workers=own.workers)
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

    def _take(self, entry: OpenOverlap, found: Schedule, bare: Schedule | None, bound: float) -> None:
        """``found``, judged, which is better than the best; and what overlap brings there."""
        faults = [*violations(found), *violations_of_choice(found, entry.placement.problem)]
        if faults:
            raise InvalidSchedule(faults)
        self._tell(entry, bound, found.makespan, is_best=True)
        without = [value for value in (None if bare is None else bare.value, self._found_plain(entry))
                   if value is not None]
        problem = entry.placement.on_every_gpu(found.problem)
        self.best = replace(found.with_value_bound(bound), problem=problem).with_solver(
            **_by_device(entry.details, problem), overlap={
                "taken": True, "without": min(without, default=None), "with": found.value, "bound": bound})

    def _found_plain(self, entry: OpenOverlap) -> float | None:
        """What the placement came to among those without options."""
        return next((row.makespan for row in self._plain_rows() if row.makespan is not None and (
            row.placement, row.cut) == (entry.title.removesuffix(IN_PAIRS), cut_of_details(dict(entry.details)))),
            None)

    # -- what is said

    def _told(self, has_open: bool) -> Schedule:
        if self.best is None and not self.refusals:
            raise Infeasible(f"{self.spec.name}: {self.listing.reason or 'there was no time to list placements'}")
        if self.best is None:
            raise next((refusal for refusal in self.refusals if isinstance(refusal, NoneFound)), self.refusals[0])
        if not has_open and self.listing.late:
            return self.best.with_solver(overlap={"nothing": "there was no time to list what could; give more time"})
        if not has_open:
            why = f", and {self.listing.reason}" if self.listing.reason else ""
            return self.best.with_solver(overlap={"nothing": (
                "what stages of one GPU each send runs beside their computation already" + why)})
        rows = [*self._plain_rows(), *self.rows]
        plain = None if self.plain is None else self.plain.value
        bound = min([self.best.value, *(row.bound for row in self.rows if not row.refusal),
                     *([] if self.plain is None else [float(self.plain.solver.get(
                         "bound_over_placements", self.plain.value_bound))])])
        value = self.best.value
        told = {"taken": False, "without": value, "with": value, "bound": self.best.value_bound,
                **(self.best.solver.get("overlap") or {}), "best_without_options": plain,
                "bound_over_placements": bound}
        solver = {key: value for key, value in self.best.solver.items() if key != "bound_over_any_placement"}
        return replace(self.best, solver=solver).with_solver(
            placements=len(rows), bound_over_placements=bound, overlap=told,
            **choice(rows, () if self.case is None else self.case.refused, self.best.value, None),
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

    def _heard(self, entry: OpenOverlap) -> Callable[[Progress], None]:
        """A listener that hears of nothing worse than the best so far."""
        def heard(progress: Progress) -> None:
            if progress.best.value < self.value:
                self.on_progress(replace(progress, best=progress.best.with_solver(placement=entry.title)))

        return heard


def _by_device(details: Mapping[str, Any], problem: Problem) -> dict[str, Any]:
    """``details`` with an entry for each device of ``problem`` where they have one for each GPU: lanes hold nothing."""
    found = dict(details)
    for label, nothing in (("static_memory", 0), ("gpu_memory", None)):
        own = iter(details[label])
        found[label] = [next(own) if device.lane_of is None else nothing for device in problem.devices]
    return found
