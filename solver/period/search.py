"""The least period of a steady state: two registries of techniques and one loop.

A period T is refuted or achieved. Feasibility is monotone in T (idle time can be inserted), so a refuted T bounds the
optimum from below; every schedule is re-timed (:func:`weft.solver.period.periodic.retime`), which often ends far below
the requested T. Refuters (:mod:`weft.solver.period.refuters`) raise the one end of the
:class:`~weft.solver.period.bracket.Bracket`, improvers (:mod:`weft.solver.period.improvers`) lower the other, in the
order of :mod:`weft.solver.period.strategy`.

The last step decides whether a period between two ticks exists.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from fractions import Fraction
from math import ceil

from weft.solver.cpsat.budget import Budget, Slice
from weft.solver.period.bracket import Bracket
from weft.solver.period.climb import refute
from weft.solver.period.decide import REFUTED, decide
from weft.solver.period.params import PARAMETERS
from weft.solver.period.periodic import Periodic, coarser
from weft.solver.period.refuters.least_distances import LeastDistances
from weft.solver.period.technique import Improver, Refuter, Task
from weft.solver.relations.min_dist import dependencies_only, least_distances, least_open_period, takes_before_giving
from weft.solver.ticks import TickProblem


def find_period(
    instance: TickProblem,
    start: Periodic,
    budget: Budget,
    on_change: Callable[[Bracket], None] = lambda _: None,
    *,
    deterministic: float = float("inf"),
    each: float = float("inf"),
    without: Collection[str] = (),
) -> Bracket:
    """The shortest period with one micro-batch per period, with a proven lower bound.

    ``start`` is any periodic schedule of ``instance`` (an upper bound). ``on_change`` is called on every change of best
    or bound. It runs within ``budget`` and about ``deterministic`` seconds of it, ``each`` for a single period; the
    open rest stays a gap between ``refuted`` and ``best.period``. For an instance of several micro-batches
    (:mod:`weft.solver.period.reductions.multi_batch`) read "one of each copy" for "one". ``without`` omits the named
    entries of :data:`~weft.solver.period.registry.OPTIONAL`, for ablations; raises ``ValueError`` for another name.
    """
    if without:
        _refuse_unknown(without)
    without = budget.without.union(without)
    time = budget.slice(deterministic, each=each)
    task = Task(near=instance.heaviest_load, seed=budget.seed,
                distances=least_distances if LeastDistances.name not in without else dependencies_only)

    # 1. The start.
    bracket = Bracket(instance, Fraction(instance.heaviest_load), start, on_change)
    bracket.publish()
    return bracket if bracket.best.period <= bracket.refuted else _narrowed(bracket, time, task, without)


def _refuse_unknown(without: Collection[str]) -> None:
    from weft.solver.period.registry import OPTIONAL

    if unknown := set(without) - set(OPTIONAL):
        raise ValueError(f"no technique is called {', '.join(sorted(unknown))}; there are {', '.join(OPTIONAL)}")


def _narrowed(bracket: Bracket, time: Slice, task: Task, without: Collection[str]) -> Bracket:
    """``bracket`` after all techniques."""
    from weft.solver.period.improvers.whole_model_solve import WholeModelSolve
    from weft.solver.period.strategy import Strategy

    on_change = bracket.listener

    # 2. A smaller problem with the same answer.
    smaller, restored = _reduced(bracket, without)
    smaller.listener = lambda inner: on_change(restored(inner))

    # 3. One technique after the other, until the gap is closed to a tick or time is over.
    for technique, share in Strategy(smaller, time, task, without).slots():
        _run(technique, smaller, share)

    # 4. Periods between two ticks.
    if WholeModelSolve.name not in without and smaller.refuted >= ceil(smaller.best.period) - 1:
        settle_fractions(smaller, time)
    return restored(smaller)


def _run(technique: Refuter | Improver, bracket: Bracket, time: Slice) -> None:
    """One slot of time; the results are in ``bracket``."""
    with bracket.counts.timed(technique.name) as count:
        if isinstance(technique, Refuter):
            refute(technique, bracket, time)
        else:
            count.calls += 1
            technique.improve(bracket, time)


def _reduced(bracket: Bracket, without: Collection[str]) -> tuple[Bracket, Callable[[Bracket], Bracket]]:
    """The bracket of a smaller problem, and the function that translates a bracket of that back to the problem
    itself."""
    from weft.solver.period.reductions.barriers import Contraction

    instance, load = bracket.instance, bracket.refuted
    if not takes_before_giving(instance):  # the argument for the range of shifts fails: only the load is proven
        return replace(bracket), lambda inner: replace(inner, refuted=load)
    contraction = Contraction.of(instance) if Contraction.name not in without else None
    if contraction is None:
        return replace(bracket), lambda inner: inner
    best = contraction.contract(bracket.best)
    if not contraction.exact:
        refuted = contraction.length + least_open_period(contraction.inner, ceil(best.period)) - 1
        bracket.refute(refuted, Contraction.name)
        return replace(bracket), lambda inner: inner

    def restored(inner: Bracket) -> Bracket:
        return replace(inner, instance=instance, refuted=inner.refuted + contraction.length,
                       best=contraction.expand(inner.best))

    return replace(bracket, instance=contraction.inner, refuted=load - contraction.length, best=best), restored


_NAME = "fractions"


def settle_fractions(bracket: Bracket, time: Slice) -> None:
    """Decide whether a period between the last refuted tick and the best one exists.

    The least period T* is a ratio weight / height over a simple cycle of the order's constraint graph. A simple cycle
    leaves every block and transfer once at most, so its weight is at most W, the sum of all durations and lags, and its
    height at most H = W / bound. Fractions with denominators up to H that are below the best period a / b are at most
    a / b - 1 / (b H): refuting that period proves the best exactly, in ticks 1 / (b H) long.
    """
    instance = bracket.instance
    weight = sum(instance.durations) + sum(arc.lag for arc in instance.arcs)
    height = max(1, int(weight / bracket.refuted))
    while not time.spent and not bracket.proven:
        factor = bracket.best.period.denominator * height
        if len(instance.durations) * weight * factor > PARAMETERS.most_fine:
            return
        with bracket.counts.timed(_NAME) as count:
            count.calls += 1
            outcome = decide(instance.refined(factor), int(bracket.best.period * factor) - 1, time)
        if outcome is REFUTED:
            bracket.refute(bracket.best.period, _NAME)
        elif isinstance(outcome, Periodic):
            bracket.offer(coarser(outcome, instance, factor, bracket.best.micro_batches_per_period), _NAME)
        else:
            return
