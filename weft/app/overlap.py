"""Overlap of collectives with computation: a spec's placements with and without options for their collectives.

The placements without overlap come first, as in ``weft solve``; then those with options: the whole model on every GPU,
and groups of GPUs that compute layers together, their micro-batches one by one or in pairs. Of these, the ones with the
least bounds are searched if they may improve on the best schedule so far: each with all its options and, if that is
better, without overlap too, so that no answer is worse than the one without overlap on the same placement. If an effort
limits the search, the placements without overlap get all of it, as they would alone, and those with overlap the same
amount again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from weft.app.lib.case import Case, case_of
from weft.app.lib.coverage import cut_of_details
from weft.app.lib.options import SearchOptions
from weft.app.lib.overlap_listing import IN_PAIRS, Listing, OpenOverlap
from weft.app.lib.placements import by_device
from weft.app.lib.sources import read_source, without_entries
from weft.app.lib.verdicts import Searched, choice, searched, told_rows
from weft.app.solving.solve import solve_case
from weft.models.overlap.data_parallel import WHOLE_MODEL, why_not_data_parallel
from weft.models.spec.sections import Spec
from weft.models.spec.spec import SpecError
from weft.solver.choices.solve import solve_run
from weft.solver.control.stopping import breakable
from weft.solver.feasibility.infeasible import Infeasible, NoneFound
from weft.solver.judge.validate import validate
from weft.solver.portfolio import Candidate, Portfolio
from weft.solver.problem import Problem
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.solver.step.search import Progress

if TYPE_CHECKING:
    from weft.app.lib.sources import MicroBatches, Source

#: Refused shapes, and the reasons.
_Refused: TypeAlias = Sequence[tuple[str, str]]

#: The share of the time for placements without overlap, and the share of a placement's time for its answer without
#: overlap.
_PLAIN, _BARE = 0.4, 0.3
#: With less than this share of the time left, no other placement is started.
_TOO_LITTLE = 0.1
#: Number of placements with options that are searched; for the others the bound is reported.
_MOST = 4


def solve_overlapped(source: Source, micro_batches: MicroBatches | None, options: SearchOptions,
                     on_progress: Callable[[Progress], None] = lambda _: None) -> Schedule:
    """The best schedule of a spec, with collectives overlapping computation if that is better.

    ``solver["overlap"]`` states the gain: for the chosen placement the best ``without`` and ``with`` overlap, and the
    ``bound``; or, as ``nothing``, the reason why there is nothing to overlap.

    Raises ``ValueError`` for a source or an objective without overlap to search, and the exceptions of
    :func:`weft.solve`.
    """
    spec = _spec(source, options)
    with options.preparing():
        case, refused = _case(spec, micro_batches, options)
    if not isinstance(micro_batches, int | None):
        raise ValueError("micro_batches names jobs or classes, and this problem has none: give a number")
    count = spec.micro_batches if micro_batches is None else micro_batches
    return _OverlapSearch(spec, case, refused, count, options, on_progress).result()


def _spec(source: Source, options: SearchOptions) -> Spec:
    """The spec of ``source``, if its collectives are known."""
    spec = read_source(source)
    if not isinstance(spec, Spec):
        raise ValueError(f"{spec.name}: overlap is for a model spec, whose collectives are known; in a block problem "
                         "they are blocks on lanes, and their options choices (see weft schema): leave overlap out")
    without_entries(spec, "parallel")
    if spec.training is not None and spec.training.lengths is not None:
        raise ValueError(f"{spec.where}: training.lengths lists micro-batches that differ, and overlap is searched "
                         "for those that are alike: leave one of them out")
    if options.objective not in ("makespan", "span", "rate"):
        raise ValueError(f"objective is {options.objective!r}, and overlap is searched for makespan, span or rate: "
                         "give one of these, or leave overlap out")
    return spec


def _case(spec: Spec, micro_batches: MicroBatches | None, options: SearchOptions) -> tuple[Case | None, _Refused]:
    """The placements without options; if the model can be replicated on every GPU but not cut into stages, the refused
    shapes and reasons."""
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


class _OverlapSearch(Portfolio[Any]):
    """The placements searched one after another, and the current results of each."""

    def __init__(self, spec: Spec, case: Case | None, refused: _Refused, count: int, options: SearchOptions,
                 on_progress: Callable[[Progress], None]) -> None:
        super().__init__(options.budget(), options.objective, on_progress)
        self.refused = refused
        self.spec, self.case, self.options = spec, case, options
        self.all_plain: Candidate[None] = Candidate(None)  # the placements without options
        self.listing = Listing(spec, case, count, options.objective)

    def result(self) -> Schedule:
        """The best schedule, with the gain of overlap."""
        with self.options.preparing():
            may_find = self.listing.may_find
        self._look_at_plain(_PLAIN if may_find else 1.0)
        queue = self._ranked(self._listed())
        self.entries += queue
        searched = 0
        for place, entry in enumerate(queue):
            if (self.interrupted or searched >= _MOST or entry.bound >= self.best * (1 - RELATIVE_TOLERANCE)
                    or (self.leader is not None and self.options.left <= _TOO_LITTLE * self.options.time_limit)):
                continue
            searched += 1
            self._look_at(entry, 1 / min(_MOST, len(queue) - place))
        return self._answer(queue)

    @property
    def plain(self) -> Schedule | None:
        """The best without options."""
        return self.all_plain.found

    def _listed(self) -> list[OpenOverlap]:
        """The placements with options that can be listed in time; none after a stop."""
        if self.interrupted:
            return []
        queue: list[OpenOverlap] = []
        try:
            with breakable(), replace(self.options.restarted(), time_limit=self.options.left).preparing():
                queue.extend(self.listing.entries())
        except KeyboardInterrupt:
            if self.leader is None:
                raise
            self.interrupted = True
        return queue

    # -- without options

    def _look_at_plain(self, share: float) -> None:
        """The placements without options, for ``share`` of the time."""
        if self.case is None:
            return
        self.entries.append(self.all_plain)
        limits = self.options if self.options.effort is not None else self.options.limited(share)
        self.take(self.all_plain, solve_case, self.case, limits)

    def _ranked(self, listed: list[OpenOverlap]) -> list[Candidate[OpenOverlap]]:
        """The placements with options, the most promising first, judged by their results without options."""
        known = {_key(row): self._value_of(row) or row.bound for row in self._plain_rows()}
        entries = [replace(entry, single=known.get(_single_of(entry))) for entry in listed]
        return [Candidate(entry, entry.least) for entry in sorted(entries, key=lambda entry: entry.rank)]

    # -- with options

    def _look_at(self, entry: Candidate[OpenOverlap], share: float) -> None:
        """Search a placement with all its options and, if that improves on the best, without overlap too, for ``share``
        of the remaining time."""
        limits = self.options.limited(share)
        found = self._solved(entry, entry.of.placement.problem, limits, 1 - _BARE)
        if isinstance(found, Infeasible):
            entry.refusal = found
            return
        entry.found, entry.least = found, max(entry.least, found.value_bound)
        if found.value >= self.best * (1 - RELATIVE_TOLERANCE):
            return
        bare, nothing_fits = self._bare(entry, limits)
        self._take(entry, found if bare is None or found.value <= bare.value else bare, bare,
                   nothing_fits=nothing_fits)

    def _bare(self, entry: Candidate[OpenOverlap], limits: SearchOptions) -> tuple[Schedule | None, bool]:
        """The best schedule of the placement without overlap, none after a stop, and whether it is proven that none
        fits."""
        best, nothing_fits = None, not self.interrupted
        for options in () if self.interrupted else entry.of.placement.bare:
            found = self._solved(entry, entry.of.placement.problem.under(options), limits, _BARE)
            nothing_fits &= isinstance(found, Infeasible) and not isinstance(found, NoneFound)
            if not isinstance(found, Infeasible) and (best is None or found.value < best.value):
                best = replace(found, choices={**options, **found.choices})
        return best, nothing_fits

    def _solved(self, entry: Candidate[OpenOverlap], problem: Problem, limits: SearchOptions, share: float
                ) -> Schedule | Infeasible:
        """The best schedule of ``problem``, the placement's or one with fewer options, or the reason why there is
        none."""
        try:
            found = solve_run(problem, entry.of.run, objective=self.objective, on_progress=self.heard(entry),
                               **limits.limited(share).limits)
        except Infeasible as refusal:
            return refusal
        except ValueError as error:  # a steady state that does not appear in so few micro-batches
            if self.objective != "rate":
                raise
            return NoneFound(str(error))
        self.interrupted |= bool(found.solver.get("interrupted"))
        return found

    def labelled(self, candidate: Candidate[OpenOverlap | None], schedule: Schedule) -> Schedule:
        return schedule if candidate.of is None else schedule.with_solver(placement=candidate.of.title)

    def _take(self, entry: Candidate[OpenOverlap], found: Schedule, bare: Schedule | None, *,
              nothing_fits: bool) -> None:
        """Record ``found``, judged and better than the best; and the gain of overlap."""
        of = entry.of
        validate(found, whole=of.placement.problem)
        without = [value for value in (None if bare is None else bare.value, self._found_plain(of))
                   if value is not None]
        problem = of.placement.on_every_gpu(found.problem)
        unit = {} if of.unit is None else {"unit": of.unit}
        bound = min(entry.least, found.value)
        entry.found = replace(found.with_value_bound(bound), problem=problem).with_solver(
            **by_device(of.details, problem), **unit, overlap={
                "taken": True, "without": min(without, default=None), "with": found.value, "bound": bound,
                **({"nothing_fits": nothing_fits} if not without else {})})
        self.follow(entry)

    def _found_plain(self, entry: OpenOverlap) -> float | None:
        """The placement's result among those without options."""
        found = [self._value_of(row) for row in self._plain_rows() if _key(row) == _single_of(entry)]
        return min((value for value in found if value is not None), default=None)

    def _value_of(self, row: Searched) -> float | None:
        """The objective value of a placement without options: rows have makespans."""
        if self.objective == "makespan" or self.plain is None:
            return row.makespan
        return self.plain.value if (row.placement, row.cut) == self._plain_chosen else None

    # -- what is said

    def _answer(self, queue: Sequence[Candidate[OpenOverlap]]) -> Schedule:
        if self.leader is None or self.leader.found is None:
            if any(entry.refusal is not None for entry in self.entries):
                raise self.nothing(self.spec.name)
            if self.listing.late:
                raise NoneFound(f"{self.spec.name}: the time limit is too short to list its placements with overlap")
            raise Infeasible(f"{self.spec.name}: {self.listing.reason}")
        best = self.leader.found
        if not queue and self.interrupted:
            return best.with_solver(interrupted=True, overlap={
                "not_searched": "the search was stopped before what may overlap was listed"})
        if not queue and self.listing.late:
            return best.with_solver(overlap={
                "not_searched": "there was no time to list what may overlap; give more time"})
        if not queue:
            why = f", and {self.listing.reason}" if self.listing.reason else ""
            return best.with_solver(overlap={"nothing": (
                "what stages of one GPU each send runs beside their computation already" + why)})
        rows = [*self._plain_rows(), *(searched(entry, chosen=entry is self.leader) for entry in queue)]
        known = [] if self.plain is None else [self.plain.value]
        overlap = best.solver.get("overlap") or {}
        known += [overlap["without"]] if overlap.get("without") is not None else []
        update = max(entry.of.placement.update for entry in queue)
        overlap = {"taken": False, "without": self.best, "with": self.best, "bound": best.value_bound,
                   **overlap, "best_without_options": min(known, default=None),
                   "bound_over_placements": self.bound,
                   **({"update": update} if update else {}),
                   **(self.listing.frameworks if best.solver.get("unit") == "step" else {})}
        solver = {key: value for key, value in best.solver.items() if key != "bound_over_any_placement"}
        return replace(best, solver=solver).with_solver(
            placements=len(rows), bound_over_placements=self.bound, overlap=overlap,
            seconds=round(self.budget.elapsed, 3), **choice(rows, self.refused, self.best, None),
            **({"interrupted": True} if self.interrupted else {}))

    def _plain_rows(self) -> list[Searched]:
        """The report on the placements without options."""
        if self.plain is None or self.case is None:
            return []
        return told_rows(self.plain, (*self.case.placements, *self.case.whole_model)[0],
                         chosen=self.all_plain is self.leader)

    @property
    def _plain_chosen(self) -> tuple[str, tuple[int, ...]] | None:
        """The key of the best placement without options, if there are several."""
        alternatives = None if self.plain is None else self.plain.solver.get("alternatives")
        if not isinstance(alternatives, list):
            return next(((row.placement, row.cut) for row in self._plain_rows()), None)
        return next(((row["placement"], tuple(row["cut"])) for row in alternatives if row["verdict"] == "chosen"), None)


def _key(row: Searched) -> tuple[str, tuple[int, ...]]:
    """The title and the cut; for the whole model on every GPU independent of its gradient sums."""
    title = row.placement
    return (WHOLE_MODEL if title.startswith(f"{WHOLE_MODEL}, ") else title), row.cut


def _single_of(entry: OpenOverlap) -> tuple[str, tuple[int, ...]]:
    """The key of the same placement without options, its micro-batches one by one."""
    return entry.title.removesuffix(IN_PAIRS), cut_of_details(dict(entry.details))
