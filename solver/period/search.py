"""Phase 1: the periodic schedule, as modulo schedules of fixed periods (:mod:`weft.solver.period.modulo_model`).

The period T is narrowed down between the closure's bound and the best known one; feasibility is monotone in T (idle
time can be put in), so a refuted T bounds the optimum from below. Every solution is re-timed
(:func:`weft.solver.period.periodic.retime`), which often lands far below the T that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import pairwise
from math import ceil, isqrt

import numpy as np

from weft.solver.cpsat.solve import Budget, run
from weft.solver.period.decide import MANY_BLOCKS, OPEN, REFUTED, Allowance, decide, refuted_in_parts, size
from weft.solver.period.improvers.beam import improve_by_beam, suits_beam
from weft.solver.period.improvers.list_schedule import list_periodic
from weft.solver.period.improvers.neighbourhoods import improve_nearby
from weft.solver.period.modulo_model import ModuloModel
from weft.solver.period.periodic import Periodic, retime
from weft.solver.period.reductions.barriers import Contraction
from weft.solver.period.refuters.lane_waits import LaneBound
from weft.solver.period.refuters.v_shape import FoldBound
from weft.solver.relations.min_dist import closure, closure_bound, takes_before_giving
from weft.solver.ticks import TickProblem

__all__ = ["PROOF_TOLERANCE", "PeriodSearch", "find_period", "shorten_latency"]

#: A period is called proven when it is within this share of its bound: finer than any measured duration.
PROOF_TOLERANCE = 1e-6

#: Deterministic seconds of the first try at a period; every later try may take four times as long.
_FIRST_TRY = 0.25

#: Of many blocks: deterministic seconds for beams, and for neighbourhoods, per block; and the gap, as best over bound,
#: from which on the latter pay.
_BEAMS, _NEARBY, _CLOSE = 0.006, 0.002, Fraction(101, 100)
#: Partial schedules in a beam: more find little more, other random choices do.
_WIDTHS = (50, 100)
#: Shares of the devices that are asked to refute periods on their own; how far apart these are at first and at last.
_PARTS, _RISE, _LAST_RISE = (1 / 8, 1 / 4, 1 / 2, 1), 1 / 512, 1 / 1024
#: More blocks than that at once are not refuted, nor moved in neighbourhoods, in reasonable time.
_MOST_BLOCKS = 256
#: Periods that stay open lie no closer than this share at first; with every pass they lie so many times closer, and
#: tries take so many times longer.
_FIRST_SPACING, _LONGER = 1 / 64, 4
#: No ticks so fine that a path through all blocks is longer than this: numbers have 63 bits.
_MOST_FINE = 2**60


@dataclass
class PeriodSearch:
    """What is known of the least period at one micro-batch per period: ``bound`` (ticks) is proven, ``best`` found."""

    bound: Fraction
    best: Periodic

    @property
    def proven(self) -> bool:
        """Whether no one-micro-batch period is shorter than ``best`` (by more than :data:`PROOF_TOLERANCE`)."""
        return self.best.period <= self.bound * Fraction(1 + PROOF_TOLERANCE)


def find_period(
    instance: TickProblem,
    start: Periodic,
    budget: Budget,
    on_change: Callable[[PeriodSearch], None] = lambda _: None,
    *,
    deterministic: float = float("inf"),
    each: float = float("inf"),
) -> PeriodSearch:
    """The shortest period with one micro-batch per period, with a proven lower bound.

    ``start`` is any periodic schedule of ``instance`` (an upper bound). ``on_change`` hears of every change of best or
    bound. Within ``budget`` and about ``deterministic`` seconds of it, ``each`` for a single period; what is open then
    stays a gap between ``bound`` and ``best.period``. For an instance in copies
    (:mod:`weft.solver.period.reductions.multi_batch`) read "one of each copy" for "one".
    """
    allowed = Allowance(budget, budget.deterministic_used + deterministic, each)
    least = Fraction(instance.heaviest_load)
    if not takes_before_giving(instance):  # the argument for the range of lags does not hold: only the load is proven
        def unproven(search: PeriodSearch) -> None:
            on_change(replace(search, bound=least))

        return replace(_search(instance, least, start, allowed, unproven), bound=least)
    contraction = Contraction.of(instance)
    if contraction is None:
        return _search(instance, least, start, allowed, on_change)
    inner = contraction.contract(start)
    if not contraction.exact:
        refuted = contraction.length + closure_bound(contraction.inner, ceil(inner.period)) - 1
        return _search(instance, max(least, Fraction(refuted)), start, allowed, on_change)

    def expanded(search: PeriodSearch) -> PeriodSearch:
        return PeriodSearch(search.bound + contraction.length, contraction.expand(search.best))

    found = _search(contraction.inner, least - contraction.length, inner, allowed,
                    lambda search: on_change(expanded(search)))
    return expanded(found)


def _search(instance: TickProblem, least: Fraction, start: Periodic, allowed: Allowance,
            on_change: Callable[[PeriodSearch], None]) -> PeriodSearch:
    """Close the gap between ``least``, a proven bound, and the period of ``start`` as far as is ``allowed``."""
    search = PeriodSearch(least, start)
    on_change(search)
    low = closure_bound(instance, ceil(start.period))
    listed = list_periodic(instance, low, ceil(start.period) - 1)
    if listed is not None:
        search.best = replace(listed, copies=start.copies)
    _narrow(instance, search, low, allowed, on_change)
    if not search.proven and search.bound >= ceil(search.best.period) - 1:
        _settle_fractions(instance, search, allowed, on_change)
    return search


def _narrow(instance: TickProblem, search: PeriodSearch, low: int, allowed: Allowance,
            on_change: Callable[[PeriodSearch], None]) -> None:
    """Close the gap to one tick. All below ``low`` is refuted.

    Periods near the optimum are the hardest to decide: solves are cut short at first, which finds good schedules and
    narrows the gap from both sides, and what stayed open is tried again, more closely and for longer. Of many blocks,
    few whole periods are ever decided but the bound: folds, waits on lanes and parts of the devices raise it, beams and
    neighbourhoods find better schedules.
    """
    search.bound = max(search.bound, Fraction(low - 1))
    on_change(search)
    each, spacing = _FIRST_TRY * size(instance), _FIRST_SPACING
    many = len(instance.durations) >= MANY_BLOCKS
    first = 0 if many else low  # the closure's bound often is the optimum
    fold = FoldBound.of(instance, low) if many else None
    if fold is not None:
        _refine(search, fold, replace(allowed, each=min(each / 8, allowed.each)), on_change)
        fold = fold if fold.helped else None
    by_models = fold is None or len(instance.durations) < _MOST_BLOCKS  # which say little of a large fold
    if many and by_models:
        brief = replace(allowed, each=min(each / 2, allowed.each))
        if fold is None:
            _raise_by_lanes(instance, search, brief, on_change)
        _refute_parts(instance, search, brief, on_change)
        least = int(search.bound) + 1
        if least < search.best.period and not allowed.spent:
            _try(instance, search, least, replace(allowed, each=min(each / 4, allowed.each)), on_change, parts=False)
    draw = np.random.default_rng(allowed.budget.seed)
    improved = None  # up to where the best has been improved in neighbourhoods
    by_beams = many and suits_beam(instance)
    while not allowed.spent and search.bound < ceil(search.best.period) - 1:
        now = replace(allowed, each=min(each, allowed.each))
        if by_beams:
            for width in _WIDTHS:
                _beam(search, width, allowed, on_change, draw, fold is not None)
        if many and search.best.period != improved and (len(instance.durations) <= _MOST_BLOCKS or not by_beams):
            _improve(search, allowed, on_change)
            improved = search.best.period
        if fold is not None:
            _refine(search, fold, now, on_change)
        if not by_beams:
            _close_in(instance, search, first, spacing, now, on_change)
        elif by_models or (fold is not None and fold.exhausted):  # beams find the schedules: models are for the bound
            _refute_parts(instance, search, now, on_change)
        if each >= allowed.each:
            return
        first, each, spacing = 0, _LONGER * each, spacing / _LONGER


def _raise_by_lanes(instance: TickProblem, search: PeriodSearch, allowed: Allowance,
                    on_change: Callable[[PeriodSearch], None]) -> None:
    """Refute periods by the waits on lanes, where the blocks are lanes."""
    lanes = LaneBound.of(instance, ceil(search.best.period))
    if lanes is not None:
        for cells in lanes.cells:
            _climb(search, partial(lanes.refutes, cells=cells, budget=allowed.budget), allowed, on_change)
            if not lanes.near:
                break


def _refine(search: PeriodSearch, fold: FoldBound, allowed: Allowance,
            on_change: Callable[[PeriodSearch], None]) -> None:
    """Refute periods as a fold, in finer cells than before."""
    def refuted(period: int) -> None:
        search.bound = max(search.bound, Fraction(period))
        on_change(search)

    fold.refine(int(search.bound), ceil(search.best.period), allowed, refuted)


def _refute_parts(instance: TickProblem, search: PeriodSearch, allowed: Allowance,
                  on_change: Callable[[PeriodSearch], None]) -> None:
    """Refute periods by parts of the devices that are not too large, small ones first, and by all at last."""
    for share in _PARTS:
        if share * len(instance.durations) > _MOST_BLOCKS:
            return
        refuted = partial(refuted_in_parts, instance, share=share, allowed=allowed) if share < 1 else \
            partial(_refuted_whole, instance, search, allowed, on_change)
        _climb(search, refuted, allowed, on_change, finest=_LAST_RISE)


def _climb(search: PeriodSearch, refuted: Callable[[int], bool], allowed: Allowance,
           on_change: Callable[[PeriodSearch], None], *, finest: float = 0.0) -> None:
    """Try periods above the bound with growing steps, then closer, down to ``finest`` as a share of the period."""
    high, step = ceil(search.best.period), max(1, int(search.bound * _RISE))
    while not allowed.spent and (period := int(search.bound) + step) < min(high, ceil(search.best.period)):
        if refuted(period):
            search.bound, step = max(search.bound, Fraction(period)), 2 * step
            on_change(search)
        elif step == 1 or period < search.bound * (1 + finest):
            return
        else:
            high, step = period, step // 2


def _beam(search: PeriodSearch, width: int, allowed: Allowance, on_change: Callable[[PeriodSearch], None],
          draw: np.random.Generator, folded: bool) -> None:
    """Improve the best by beams of ``width`` partial schedules; in folds blocks may stray."""
    improve_by_beam(search.best, int(search.bound) + 1, allowed.budget, _better(search, on_change), draw, width=width,
                    deterministic=min(allowed.left / 2, len(search.best.starts) * _BEAMS), stray=folded)


def _improve(search: PeriodSearch, allowed: Allowance, on_change: Callable[[PeriodSearch], None]) -> None:
    """Improve the best in neighbourhoods: in a wide gap, whole periods of many blocks would take too long."""
    if search.best.period < search.bound * _CLOSE:
        return
    improve_nearby(search.best, int(search.bound) + 1, allowed.budget, _better(search, on_change),
                   deterministic=min(allowed.left / 2, len(search.best.starts) * _NEARBY))


def _better(search: PeriodSearch, on_change: Callable[[PeriodSearch], None]) -> Callable[[Periodic], None]:
    """What takes over a better schedule."""
    def better(found: Periodic) -> None:
        search.best = found
        on_change(search)

    return better


def _close_in(instance: TickProblem, search: PeriodSearch, first: int, spacing: float, allowed: Allowance,
              on_change: Callable[[PeriodSearch], None]) -> None:
    """One pass over the whole periods that are not decided: ``first``, then the middle of the widest untried stretch.

    Periods that stay open are passed over, until they lie no further apart than ``spacing`` of a period.
    """
    undecided: list[int] = []
    while not allowed.spent:
        low, high = int(search.bound) + 1, ceil(search.best.period) - 1
        if low > high:
            return
        period = first if low <= first <= high and not undecided else _widest(low, high, undecided, spacing * high)
        if period is None:
            return
        if not _try(instance, search, period, allowed, on_change):
            undecided.append(period)


def _try(instance: TickProblem, search: PeriodSearch, period: int, allowed: Allowance,
         on_change: Callable[[PeriodSearch], None], *, parts: bool = True) -> bool:
    """Whether ``period`` is decided now; what that says is in ``search``."""
    outcome = decide(instance, period, allowed, search.best, parts=parts)
    if isinstance(outcome, Periodic):
        found = replace(outcome, copies=search.best.copies)
        search.best = min(search.best, found, key=lambda known: known.period)
    elif outcome is REFUTED:  # and with it every shorter period
        search.bound = max(search.bound, Fraction(period))
    on_change(search)
    return outcome is not OPEN


def _refuted_whole(instance: TickProblem, search: PeriodSearch, allowed: Allowance,
                   on_change: Callable[[PeriodSearch], None], period: int) -> bool:
    """Whether all devices at once refute ``period``."""
    _try(instance, search, period, allowed, on_change, parts=False)
    return search.bound >= period


def _widest(low: int, high: int, undecided: Sequence[int], spacing: float) -> int | None:
    """A period from ``low`` to ``high`` to try next; ``None`` if all lie near undecided ones."""
    known = [period for period in undecided if low <= period <= high]
    if not known:
        # Halve the gap while it is wide; once narrow, the best is probably optimal: refute the tick below it.
        return isqrt(low * high) if high - low > high // 500 else high
    gap, left = max((right - left, left) for left, right in pairwise(sorted([low - 1, *known, high + 1])))
    return left + gap // 2 if gap > max(1.0, spacing) else None


def _settle_fractions(instance: TickProblem, search: PeriodSearch, allowed: Allowance,
                      on_change: Callable[[PeriodSearch], None]) -> None:
    """Decide whether a period between the last refuted tick and the best one exists.

    The least period T* is a ratio weight / height over a simple cycle of the order's constraint graph. A simple cycle
    leaves every block and transfer once at most, so its weight is at most W, the sum of all durations and lags, and its
    height at most H = W / bound. Fractions with denominators up to H that are below the best period a / b are at most
    a / b - 1 / (b H): refuting that period proves the best exactly, in ticks 1 / (b H) long.
    """
    weight = sum(instance.durations) + sum(arc.lag for arc in instance.arcs)
    height = max(1, int(weight / search.bound))
    while not allowed.spent:
        factor = search.best.period.denominator * height
        if len(instance.durations) * weight * factor > _MOST_FINE:
            return
        outcome = decide(instance.refined(factor), int(search.best.period * factor) - 1, allowed)
        if outcome is REFUTED:
            search.bound = search.best.period
        elif isinstance(outcome, Periodic):
            search.best = _coarser(outcome, instance, factor, search.best.copies)
        else:
            return
        on_change(search)
        if search.proven:
            return


def shorten_latency(found: Periodic, budget: Budget, *, deterministic: float) -> Periodic:
    """Among the schedules of the same period, one with the least latency found in ``deterministic`` seconds.

    Latency (first start to last end of one micro-batch) is what warm-up and cool-down add to the makespan of a
    rigid repetition: (N - 1) T + latency.
    """
    denominator = found.period.denominator
    instance = found.instance.refined(denominator)
    period = int(found.period * denominator)
    lags = closure(instance, period)
    if lags is None:
        raise AssertionError("the closure refutes a period that was achieved")
    model = ModuloModel(instance, period, lags)
    model.minimise_latency()
    model.hint(found)
    outcome = run(model.model, budget, deterministic=deterministic, relaxation=False)
    if not outcome.found:
        return found
    shorter = retime(instance, period, model.starts(outcome.solver))
    result = _coarser(shorter, found.instance, denominator, found.copies)
    return result if (result.period, result.latency) < (found.period, found.latency) else found


def _coarser(fine: Periodic, instance: TickProblem, factor: int, copies: int) -> Periodic:
    """A schedule of ``instance.refined(factor)`` as one of ``instance``."""
    return Periodic(instance, fine.period / factor, tuple(start / factor for start in fine.starts), copies)
