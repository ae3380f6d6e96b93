"""Latency of one micro-batch against throughput: the best at a floor, or the whole front, over all placements."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from math import isqrt
from typing import TYPE_CHECKING

from weft.app.latency.serving import PlacedRates, Serving, ServingPoint, parse_period, parse_throughput
from weft.app.lib.case import Case, CasePlacement, case_of
from weft.app.lib.options import SearchOptions, require_count
from weft.app.lib.sources import read_source
from weft.app.solving.solve import for_objective
from weft.solver.choices.partial import MOST_LOOKS
from weft.solver.cpsat.budget import Budget
from weft.solver.feasibility.infeasible import Infeasible, NoneFound
from weft.solver.judge.validate import validate
from weft.solver.latency.search import LatencySearch, least_latency, listed_within, slowest_useful_period
from weft.solver.period.bracket import PROOF_TOLERANCE, Bracket
from weft.solver.period.improvers.starts import periodic_seed
from weft.solver.period.periodic import Periodic
from weft.solver.period.search import find_period
from weft.solver.problem import Number, Problem
from weft.solver.relations.min_dist import takes_before_giving
from weft.solver.schedule import Schedule
from weft.solver.step.search import Search
from weft.solver.step.stretch import at_its_times
from weft.solver.ticks import TickProblem

if TYPE_CHECKING:
    from weft.app.lib.sources import MicroBatches, Source

#: Maximum deterministic seconds for the least period of one placement, and for one latency.
_PERIOD, _LATENCY = 20.0, 20.0
#: The share of the remaining time for list schedules, at each probe of a placement.
_LISTED = 0.02
#: Two points whose periods, or latencies, are closer than this share count as one.
_APART = Fraction(1, 200)


def _require_one_kind(case: Case) -> None:
    """Latencies refer to one micro-batch, on listed placements only."""
    if case.wide is None:
        if any(placement.rounds is not None for placement in case.placements):  # of training.lengths
            raise ValueError(f"{case.name}: a latency is of one micro-batch, and here their lengths differ "
                             "(training.lengths): give them one length")
        return
    if not case.wide.problem.under(case.placements[0].choices).is_plain:
        raise ValueError(f"{case.name}: a latency is of one micro-batch, and here they are of several jobs or classes: "
                         "ask for one of them")
    if case.wide.problem.assignment_count > MOST_LOOKS:
        raise ValueError(f"{case.name}: has {case.wide.problem.assignment_count} assignments, the latency of at most "
                         f"{MOST_LOOKS} is searched: fix some choices")


def serve_source(
    source: Source,
    micro_batches: MicroBatches | None,
    options: SearchOptions,
    on_progress: Callable[[Serving], None],
    *,
    throughput: Number | str | None,
    period: Number | str | None,
    points: int,
) -> Serving:
    """See :func:`weft.latency`."""
    from weft.models.spec.model_sections import GraphNetworkModel

    if throughput is not None and period is not None:
        raise ValueError("throughput and period say the same: give one of them")
    require_count("points", points)
    if points < 2:
        raise ValueError(f"points is {points}, a trade-off has at least its two ends")
    source = read_source(source)
    size = None if isinstance(source, Problem) else source.run.micro_batch_size
    if not isinstance(source, Problem) and isinstance(source.model, GraphNetworkModel):
        raise ValueError(f"{source.where}: a latency is of one micro-batch among others, and a graph-network runs one "
                         "pass over its graph at a time: its latency is its makespan")
    with options.preparing():
        counted = micro_batches or 1 if isinstance(source, Problem) and source.is_plain else micro_batches
        case = case_of(source, counted, options)
        _require_one_kind(case)
        case = for_objective(case, "latency")  # latencies are searched only on the listed placements
    unit = case.placements[0].problem.time_unit
    floor = (parse_period(period, unit) if period is not None
             else None if throughput is None else 1 / parse_throughput(throughput, unit))
    budget = options.budget()
    count = case.micro_batches if micro_batches is not None or size is not None else None
    search = _FrontSearch(case, size, count, floor, budget, on_progress)
    with budget.kept(lambda: True):
        search.start()
        if floor is None:
            search.trace(points)
        else:
            search.meet(floor)
    if not search.points:
        search.settle()
    if not search.points:
        if budget.interrupted:
            raise KeyboardInterrupt
        raise NoneFound(f"{case.name}: no steady state {'so fast ' if floor is not None else ''}was found within the "
                        "time limit, and it is not proven that there is none; give it more time")
    return search.result()


class _FrontSearch:
    """The search for latencies over the placements of a case."""

    def __init__(self, case: Case, size: int | None, count: int | None, floor: Fraction | None, budget: Budget,
                 on_progress: Callable[[Serving], None]) -> None:
        self.case, self.size, self.count, self.floor = case, size, count, floor
        self.budget, self.on_progress = budget, on_progress
        self.points: dict[tuple[Fraction, Fraction], tuple[PlacedRates, Periodic]] = {}  # by period and latency
        self.placed: list[PlacedRates] = []
        self.examined = 0  # placements covered by bounds: fewer than all after an early interrupt
        self._built: dict[tuple[Fraction, Fraction], tuple[Schedule, tuple[Number, ...]]] = {}

    def start(self) -> None:
        """The least period of every placement. Raises :class:`Infeasible` if none fits."""
        refused: list[Infeasible] = []
        for number, placement in enumerate(self.case.placements):
            self.examined = number + 1
            try:
                self._start(placement, len(self.case.placements) - number)
            except Infeasible as refusal:
                refused.append(refusal)
        if not self.placed:
            raise refused[0]

    def settle(self) -> None:
        """Points from the results so far, after an interrupt before the first search for a latency has ended."""
        for placed in self.placed:
            for found in placed.known:
                if self.floor is None or found.period <= placed.limit(self.floor):
                    self._add(placed, found)

    # -- the two ways to search ---------------------------------------------------------------------------------

    def meet(self, floor: Fraction) -> None:
        """The least latency at a period of at most ``floor``. Raises :class:`Infeasible` if none is so short."""
        if all(placed.best_within(floor) is None for placed in self.placed):
            raise Infeasible(self._refusal(floor))
        self._probe(floor, 1)

    def trace(self, points: int) -> None:
        """The front from the best throughput to the least latency, ``points`` of it, the widest gaps first."""
        longest = max(slowest_useful_period(placed.instance) * placed.instance.tick for placed in self.placed)
        longest = max(longest, *(max(found.period for found in placed.known) * placed.instance.tick
                                 for placed in self.placed))
        self._probe(longest, points)
        shortest = min(placed.fastest.period * placed.instance.tick for placed in self.placed)
        self._probe(shortest, points - 1)
        reach = {shortest: shortest}  # the period up to which a point is known to be the best
        for turn in range(3 * points):
            front = self.front()
            if len(front) >= points or self.budget.spent:
                return
            gaps = [(longer / max(shorter, reach.get(shorter, shorter)) - 1, high / low - 1, shorter, longer)
                    for (shorter, high), (longer, low) in pairwise(front)]
            open_gaps = [gap for gap in gaps if gap[0] > _APART and gap[1] > _APART]
            if not open_gaps:
                return
            _, _, shorter, longer = max(open_gaps, key=lambda gap: gap[0] * gap[1])
            middle = _between(max(shorter, reach.get(shorter, shorter)), longer)
            self._probe(middle, max(2, 2 * points - turn))
            reach[max(period for period, _ in self.front() if period <= middle)] = middle

    def front(self) -> list[tuple[Fraction, Fraction]]:
        """``(period, latency)`` of the non-dominated points, by rising period."""
        front: list[tuple[Fraction, Fraction]] = []
        for period, latency in sorted(self.points):
            if not front or latency < front[-1][1]:
                front.append((period, latency))
        return front

    # -- steps ------------------------------------------------------------------------------------------------------

    def _start(self, placement: CasePlacement, parts: int) -> None:
        """One micro-batch after another, and, unless that is fast enough, the least period."""
        problem, instance = placement.problem, TickProblem.of(placement.problem)
        if placement.replicas > 1:
            raise Infeasible(f"{problem.name}: with several replicas of the model a period has as many micro-batches; "
                             "latency is searched with one (leave x out of placement.shapes)")
        search = Search(problem, 1, self.budget)
        for _ in search.steps():  # raises Infeasible if one micro-batch alone does not fit
            if search.best is not None:
                break
        search.result()  # raises NoneFound if that is open
        if not instance.balanced or not takes_before_giving(instance):
            raise Infeasible(f"{problem.name}: no steady state is looked for, so there is no throughput to hold: "
                             "every micro-batch must give back the memory it takes, each part after it was taken")
        name = None if search.best is None else str(search.best.solver.get("name"))
        placed = PlacedRates(placement, instance, list({id(one): one for one in (
            periodic_seed(instance, None), periodic_seed(instance, name))}.values()),
            Fraction(instance.heaviest_load))
        self.placed.append(placed)

        def changed(search: Bracket) -> None:
            placed.least_period = max(placed.least_period, search.refuted)
            if search.best.period < placed.fastest.period:
                placed.known.append(search.best)
            if self._fast_enough(placed):
                raise _FastEnough

        if not self._fast_enough(placed):
            with contextlib.suppress(_FastEnough), self.budget.limited():
                changed(find_period(instance, placed.fastest, self.budget, changed,
                                      deterministic=self.budget.share(1 / (parts + 1), _PERIOD)))

    def _fast_enough(self, placed: PlacedRates) -> bool:
        return self.floor is not None and placed.fastest.period <= placed.limit(self.floor)

    def _probe(self, period: Fraction, parts: int) -> None:
        """Search every placement for the least latency at a period of at most ``period``; ``parts`` probes remain."""
        starts: list[tuple[Fraction, int, Periodic]] = []
        for number, placed in enumerate(self.placed):
            with self.budget.limited(_LISTED):
                placed.known.extend(listed_within(placed.instance, placed.least_period, placed.limit(period)))
            start = placed.best_within(period)
            if start is not None:
                self._add(placed, start)
                starts.append((start.latency * placed.instance.tick, number, start))
        for turn, (_, number, start) in enumerate(sorted(starts, key=lambda entry: entry[:2])):
            placed = self.placed[number]
            bound = placed.bound_within(period)
            if bound is None:
                continue
            best = min(latency for at, latency in self.points if at <= period)
            if bound >= best:
                continue
            found: LatencySearch | None = None

            def changed(search: LatencySearch) -> None:
                nonlocal found
                found = search

            share = 1 / (parts * (len(starts) - turn))
            with self.budget.limited(share):
                least_latency(placed.instance, placed.limit(period), start, self.budget,
                              least_period=placed.least_period, on_change=changed,
                              deterministic=self.budget.share(share, _LATENCY))
            if found is None:
                continue
            placed.bounds.append((placed.limit(period), found.bound))
            placed.known.append(found.best)
            self._add(placed, found.best)
        self.on_progress(self.result())

    def _add(self, placed: PlacedRates, found: Periodic) -> None:
        tick = placed.instance.tick
        self.points.setdefault((found.period * tick, found.latency * tick), (placed, found))

    # -- what is known ----------------------------------------------------------------------------------------------

    def _bound(self, period: Fraction) -> Fraction:
        """A proven bound on the latency at a period of at most ``period``, over all placements."""
        bounds = [bound for placed in self.placed if (bound := placed.bound_within(period)) is not None]
        return min(bounds)

    def _refusal(self, floor: Fraction) -> str:
        first = self.placed[0].placement.problem
        unit = first.time_unit
        best = min(placed.fastest.period * placed.instance.tick for placed in self.placed)
        bound = Fraction(min(placed.instance.bound(placed.least_period, 1) for placed in self.placed))
        proof = ("proven the best with one micro-batch a period" if best <= bound * (1 + Fraction(PROOF_TOLERANCE))
                 else f"and no more than {_rate(bound)}/{unit} is possible with one micro-batch a period")
        return (f"{self.case.name}: {_rate(floor)} micro-batches/{unit} cannot be met: the best found is "
                f"{_rate(best)}/{unit} (a period of {float(best):.6g} {unit}), {proof}")

    def result(self) -> Serving:
        """The front so far, or the one point at the floor."""
        first = self.placed[0].placement.whole
        front = self.front()
        if self.floor is not None:
            front = front[-1:]
        gpus = sum(device.lane_of is None for device in first.devices)
        return Serving(
            self.case.name, gpus, first.time_unit, first.memory_unit, self.size,
            tuple(self._point(period, latency) for period, latency in front),
            floor=self.floor, placements=self.examined,
            least_period=float(min(p.fastest.period * p.instance.tick for p in self.placed)),
            least_period_bound=min(p.instance.bound(p.least_period, 1) for p in self.placed),
            seconds=self.budget.elapsed, seed=self.budget.seed, interrupted=self.budget.interrupted,
            covered=self.case.coverage)

    def _point(self, period: Fraction, latency: Fraction) -> ServingPoint:
        placed, _ = self.points[period, latency]
        limit = max(period, self.floor or period)
        bound = min(float(latency), float(self._bound(limit)))
        schedule, peak = self._build(period, latency)
        schedule = placed.placement.label(schedule).with_solver(
            latency=float(latency), latency_bound=bound, latency_period=float(limit), seed=self.budget.seed,
            seconds=round(self.budget.elapsed, 3))
        return ServingPoint(placed.placement.title, float(period), float(latency), bound, peak, schedule)

    def _build(self, period: Fraction, latency: Fraction) -> tuple[Schedule, tuple[Number, ...]]:
        """The schedule of a point for its micro-batches, judged, and every device's peak in the steady state."""
        if (period, latency) not in self._built:
            placed, found = self.points[period, latency]
            schedule = at_its_times(found, self.count or found.depth + 4)
            steady = at_its_times(found, found.depth + 2)
            for judged in (schedule, steady):
                validate(judged)
            # of every GPU, even if one device represents several
            self._built[period, latency] = schedule, placed.placement.label(steady).peak_with_static
        return self._built[period, latency]


class _FastEnough(Exception):
    """Ends the search for a shorter period."""


def _between(low: Fraction, high: Fraction) -> Fraction:
    """Approximately the geometric mean, with as few digits as possible: large denominators make proofs harder."""
    mean = Fraction(isqrt(int(low * high * 10**24)), 10**12)
    for digits in (1, 2, 5, 10, 20, 50, *(10**power for power in range(2, 13))):
        rounded = Fraction(round(mean * digits), digits)
        if low < rounded < high:
            return rounded
    return (low + high) / 2


def _rate(period: Fraction) -> str:
    return f"{float(1 / period):.6g}"
