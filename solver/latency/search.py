"""The least latency of one micro-batch among periodic schedules that are fast enough.

Latency is the time from a micro-batch's first start to its last end; fast enough means one micro-batch per period of at
most a given length. It is not monotone in the period itself: the order on the devices that is best for one period may
need a longer one, or a shorter one. So the period is a variable of the model
(:mod:`weft.solver.latency.free_period_model`), whose optimum is a bound, and for the order that was found the best
times and period are computed exactly. If fractions of a tick leave a gap between the two, the ticks are made finer.

*Exactness.* The best t and P of an order are a corner of two paths or cycles of constraints, L = w + h P and
L = v + g P (or P at its limit), so the denominators of P and L are at most |h - g|. A path's weight w is at most W, the
sum of all durations and transfers, and 0 <= w + h P <= L, so -W / P <= h <= L / P: denominators are at most
D = (L + W) / P for the least P. No latency is closer below a / b than 1 / (b D); a bound that is gets raised to it.

*Windows.* The least latency is mostly near the critical path. Small limits on it come first: they leave few orders, and
a limit that is refuted is a bound.

The search begins with schedules made in milliseconds, at several periods.

Below the longest period allowed, a modulo list schedule (:mod:`weft.solver.period.improvers.list_schedule`) is often
close to the critical path, as devices have slack there; at the least period few orders are left. The times of each
order are those of least latency.

The best times and period for a given order of blocks, the period free: exact, in fractions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import floor

from weft.solver.control.clock import checkpoint
from weft.solver.cpsat.budget import Budget, Slice
from weft.solver.cpsat.solve import Outcome, proven
from weft.solver.late import cp_model
from weft.solver.latency.free_period_model import FreePeriodModel, heads_and_tails, lags_within
from weft.solver.period.improvers.list_schedule import list_periodic
from weft.solver.period.periodic import Periodic, fits_pools
from weft.solver.relations.difference_constraints import Constraint, longest_paths_or_cycle
from weft.solver.ticks import TickProblem

#: A latency is called proven when it is within this share of its bound: finer than any measured duration.
PROOF_TOLERANCE = Fraction(1, 10**6)

#: First limits on the latency, as shares of the bound above it.
_EXCESS = (Fraction(0), Fraction(1, 16), Fraction(1, 4), Fraction(1))
#: The factor by which the ticks become finer if fractions leave a gap, and how often.
_FINER, _MOST_FINER = 32, 3
#: The most ticks in a latency: CP-SAT adds up such numbers.
_MOST_TICKS = 2**44


@dataclass
class LatencySearch:
    """The state of the search for the least latency: ``bound`` (ticks) is proven, ``best`` found."""

    bound: Fraction
    best: Periodic

    @property
    def proven(self) -> bool:
        """Whether no fast enough schedule has less latency than ``best`` (by more than :data:`PROOF_TOLERANCE`)."""
        return self.best.latency <= self.bound * (1 + PROOF_TOLERANCE)


def slowest_useful_period(instance: TickProblem) -> int:
    """Ticks of a period at which any schedule of one micro-batch can be repeated: no longer one allows less latency.

    An earliest-start schedule of one micro-batch lasts no longer than all its work and transfers one after another; the
    next one then begins after it and after what it still sends.
    """
    return sum(instance.durations) + 2 * sum(arc.lag for arc in instance.arcs)


def longest_chain(instance: TickProblem, limit: Fraction | int) -> int | None:
    """Ticks of the longest chain of dependencies within one micro-batch, at any period of at most ``limit``; ``None``
    if the dependencies alone rule such periods out."""
    lags = lags_within(instance, limit)
    return None if lags is None else max(heads_and_tails(instance, lags)[1])


def least_latency(
    instance: TickProblem,
    limit: Fraction,
    start: Periodic,
    budget: Budget,
    *,
    least_period: Fraction | None = None,
    deterministic: float = float("inf"),
    on_change: Callable[[LatencySearch], None] = lambda _: None,
) -> LatencySearch:
    """The least latency of one micro-batch at one micro-batch per period of at most ``limit`` ticks, with its bound.

    ``start`` is any such schedule, ``least_period`` a proven bound on the period of all. The instance's micro-batches
    must give back what they take, and take it first (:func:`weft.solver.relations.min_dist.takes_before_giving`).
    Within ``budget`` and about ``deterministic`` seconds of it; the open rest stays a gap.

    Raises ``ValueError`` for a ``start`` that is slower than ``limit``.
    """
    if start.period > limit:
        raise ValueError(f"the schedule to start from has a period of {start.period} ticks, more than {limit}")
    limit = min(limit, max(start.period, Fraction(slowest_useful_period(instance))))
    least = max(Fraction(instance.heaviest_load), least_period or Fraction(0))
    search = LatencySearch(Fraction(longest_chain(instance, instance.loosened(limit)) or 0), start)
    on_change(search)
    time = budget.slice(deterministic)
    ticks = limit.denominator if limit.denominator <= _FINER else 1
    for _ in range(_MOST_FINER + 1):
        decided = _Round(instance, limit, least, ticks, time, on_change).close(search)
        ticks *= _FINER
        if search.proven or not decided or ticks * search.best.latency > _MOST_TICKS:
            break
    return search


@dataclass(frozen=True)
class _Round:
    """The search in ticks ``ticks`` times finer."""

    instance: TickProblem
    limit: Fraction
    least: Fraction
    ticks: int
    time: Slice
    on_change: Callable[[LatencySearch], None]

    def close(self, search: LatencySearch) -> bool:
        """Close the gap of ``search``; whether everything decidable in these ticks was decided."""
        decided = True
        for excess in (*_EXCESS, None):
            if search.proven:
                return True
            last = math.ceil(self.ticks * search.best.latency) - 1  # the image of what is better than the best
            top = last if excess is None else min(last, math.floor(self.ticks * search.bound * (1 + excess)))
            if self.time.spent:
                return False
            left = self.time.left
            decided = self._within(search, top, left if top == last else left / 4)
            if decided and search.bound * self.ticks <= top:
                return True  # the optimum is within the limit
        return decided

    def _within(self, search: LatencySearch, top: int, deterministic: float) -> bool:
        """Search among latencies up to ``top``; whether the least of them is found, or all are refuted."""
        model = self._model(search, top)
        outcome = proven(model.model, self.time.budget, deterministic=deterministic)
        if outcome.infeasible:
            # Any latency better than the best has an image up to ceil(best) - 1.
            self._raise(search, min(Fraction(top + 1, self.ticks), search.best.latency))
            return True
        if outcome.status != cp_model.UNKNOWN:
            # The objective is twice the latency, plus one if the period is a fraction.
            self._raise(search, min(Fraction(round(outcome.solver.best_objective_bound) // 2, self.ticks),
                                    search.best.latency))
        if outcome.found and not self._keep(search, model, outcome) and not self.time.spent:
            model = self._model(search, top)
            model.model.add(model.fraction == 0)  # of a whole period every solution is a schedule
            whole = proven(model.model, self.time.budget, deterministic=deterministic)
            if whole.found:
                self._keep(search, model, whole)
        return outcome.optimal

    def _model(self, search: LatencySearch, top: int) -> FreePeriodModel:
        return FreePeriodModel(self.instance, self.ticks, self.least, self.limit,
                               math.floor(search.bound * self.ticks), top)

    def _keep(self, search: LatencySearch, model: FreePeriodModel, outcome: Outcome) -> bool:
        """The exact schedule of the solution, kept if it is better; whether there is one."""
        heights = {pair: model.chosen(pair, outcome.solver) for pair in model.heights}
        found = FixedHeights(self.instance, heights).best(self.least, self.limit)
        if found is not None and not fits_pools(found):  # of these the model knows averages at most
            return False
        if found is not None and found.latency < search.best.latency:
            search.best = found
            self._raise(search, search.bound)
            self.on_change(search)
        return found is not None

    def _raise(self, search: LatencySearch, bound: Fraction) -> None:
        """Record a bound, and raise it to the best if there is nothing in between ("Exactness")."""
        if search.best.latency - bound < 1 / (search.best.latency.denominator * self._largest_denominator(search)):
            bound = search.best.latency
        if bound > search.bound:
            search.bound = bound
            self.on_change(search)

    def _largest_denominator(self, search: LatencySearch) -> Fraction:
        work = sum(self.instance.durations) + sum(arc.lag for arc in self.instance.arcs)
        loose, least = self.instance.loosened(self.limit), self.least
        return max((search.best.latency + work) / least, Fraction(max(loose.denominator, least.denominator)))


#: The ratio of consecutive periods from the longest down to the least, and the most periods.
_SHORTER, _MOST = Fraction(8, 9), 12


def listed_within(instance: TickProblem, least: Fraction, limit: Fraction) -> Iterator[Periodic]:
    """List schedules with periods from ``limit`` down to ``least`` (ticks), each at its least latency."""
    period = limit
    for _ in range(_MOST):
        checkpoint()
        found = list_periodic(instance, floor(period), floor(period))
        if found is not None and found.period <= limit:
            yield least_latency_of(found, limit)
        period *= _SHORTER
        if period < least:
            return


def least_latency_of(found: Periodic, limit: Fraction) -> Periodic:
    """The order of ``found``, of one micro-batch a period, at the times and the period of at most ``limit`` ticks that
    have the least latency."""
    instance = found.instance
    heights = {(i, j): floor((found.starts[j] - found.starts[i] - instance.durations[i]) / found.period)
               for i, j in instance.shared_pairs()}
    best = FixedHeights(instance, heights).best(Fraction(instance.heaviest_load), limit)
    return found if best is None or best.latency >= found.latency or not fits_pools(best) else best


class FixedHeights:
    """The choice that is left once the height of every pair of blocks on one device is fixed
    (:mod:`weft.solver.latency.free_period_model`): starts and the period.

    These are difference constraints, with the latency as one more: at (P, L) either starts satisfy them, or a cycle is
    violated, whose weights make it a half-plane a L + h P >= w of the feasible set. Half-planes are collected until the
    best point (least L, then least P) violates no further one. There are finitely many simple cycles.
    """

    def __init__(self, instance: TickProblem, heights: Mapping[tuple[int, int], int]) -> None:
        self.instance = instance
        blocks = len(instance.durations)
        first, last = blocks, blocks + 1
        self.nodes = blocks + 2
        self._back = Constraint(last, first, 0, 0)  # from the last end to the first start: later by minus the latency
        self.edges = [self._back]
        for i, duration in enumerate(instance.durations):
            self.edges += [Constraint(first, i, 0, 0), Constraint(i, last, duration, 0)]
        for (i, j), q in heights.items():
            self.edges += [Constraint(i, j, instance.durations[i], -q), Constraint(j, i, instance.durations[j], q + 1)]
        carried: dict[int, list[tuple[int, int]]] = {}
        for number, arc in enumerate(instance.arcs):
            if arc.link is None:
                self.edges.append(Constraint(arc.source, arc.target, instance.durations[arc.source] + arc.lag,
                                             arc.distance))
                continue
            transfer, self.nodes = self.nodes, self.nodes + 1
            self.edges += [Constraint(arc.source, transfer, instance.durations[arc.source], 0),
                           Constraint(transfer, arc.target, arc.lag, arc.distance)]
            for other, earlier in carried.setdefault(arc.link, []):
                before = instance.arcs[other]
                pair = (min(before.source, arc.source), max(before.source, arc.source))
                q = 0 if pair[0] == pair[1] else heights[pair] if pair[0] == before.source else -1 - heights[pair]
                self.edges += [Constraint(earlier, transfer, before.lag, -q),
                               Constraint(transfer, earlier, arc.lag, q + 1)]
            carried[arc.link].append((number, transfer))

    def best(self, least: Fraction, most: Fraction) -> Periodic | None:
        """The schedule of least latency, and among those of the least period, with a period from ``least`` to ``most``;
        None if there is none."""
        lines: list[tuple[int, int]] = [(0, 0)]  # (w, h): latency >= w - h P
        while True:
            point = _lowest(lines, least, most)
            if point is None:
                return None
            period, latency = point
            starts, cycle = self._at(period, latency)
            if cycle is None:
                blocks = starts[:len(self.instance.durations)]
                return Periodic(self.instance, period, tuple(start - min(blocks) for start in blocks))
            weight, height = sum(edge.weight for edge in cycle), sum(edge.height for edge in cycle)
            if any(edge is self._back for edge in cycle):
                lines.append((weight, height))
            elif height > 0:
                least = max(least, Fraction(weight, height))
            elif height < 0:
                most = min(most, Fraction(weight, height))
            else:
                return None

    def _at(self, period: Fraction, latency: Fraction) -> tuple[list[Fraction], list[Constraint] | None]:
        """Starts for this period and latency, or a violated cycle."""
        scale = math.lcm(period.denominator, latency.denominator)
        back = -int(latency * scale)
        scaled = [Constraint(edge.source, edge.target, back if edge is self._back else edge.weight * scale, edge.height)
                  for edge in self.edges]
        starts, cycle = longest_paths_or_cycle(self.nodes, scaled, period * scale)
        if cycle is not None:
            originals = {id(fine): edge for fine, edge in zip(scaled, self.edges, strict=True)}
            return [], [originals[id(edge)] for edge in cycle]
        return [start / scale for start in starts], None


def _lowest(lines: list[tuple[int, int]], least: Fraction, most: Fraction) -> tuple[Fraction, Fraction] | None:
    """(P, L) with the least L, then P, above all ``lines`` (w, h), L >= w - h P, for P from ``least`` to ``most``."""
    if least > most:
        return None
    corners = {least, most}
    for (w, h), (v, g) in combinations(lines, 2):
        if h != g:
            corners.add(Fraction(w - v, h - g))
    points = [(max(w - h * period for w, h in lines), period) for period in corners if least <= period <= most]
    latency, period = min(points)
    return period, Fraction(latency)
