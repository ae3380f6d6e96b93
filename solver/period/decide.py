"""One fixed period: a schedule of it, the proof that there is none, or neither within the time allowed."""

from __future__ import annotations

from weft.solver.cpsat.budget import Slice
from weft.solver.cpsat.solve import Attempt, Outcome, confirmed, race
from weft.solver.period.modulo_model import ModuloModel
from weft.solver.period.params import PARAMETERS
from weft.solver.period.periodic import Periodic, retime
from weft.solver.period.technique import DistancesAt
from weft.solver.relations.min_dist import least_distances
from weft.solver.ticks import TickProblem


def size(instance: TickProblem) -> float:
    """The factor by which the time of a small model is multiplied for a model of ``instance``."""
    return max(1.0, len(instance.durations) / PARAMETERS.few_blocks)


class Verdict:
    """Either no schedule exists, or none is known."""


REFUTED, OPEN = Verdict(), Verdict()


def decide(instance: TickProblem, period: int, allowed: Slice, known: Periodic | None = None, *,
           distances: DistancesAt = least_distances) -> Periodic | Verdict:
    """A schedule of at most ``period`` ticks, the proof that there is none, or neither.

    ``known`` is a hint. ``distances``: the least distances at ``period`` before a model is solved.
    """
    lags = distances(instance, period)
    if lags is None:
        return REFUTED
    if not allowed.budget.suffices(sum(len(row) * (len(row) - 1) // 2 for row in set(instance.blocks_on))):
        return OPEN
    model = ModuloModel(instance, period, lags)
    if known is not None:
        model.hint(known)
    outcome = _race(model, allowed)
    if outcome.found:
        return retime(instance, period, model.starts(outcome.solver))
    return REFUTED if outcome.infeasible else OPEN


def _race(model: ModuloModel, allowed: Slice) -> Outcome:
    """A solution, or a proof that there is none, from two configurations: presolve refutes sooner; without it,
    propagation over the ``disjunctive`` devices finds schedules that presolve misses.
    """
    attempts = (Attempt(model.model, allowed.left, presolve=True, relaxation=False),
                Attempt(model.model, allowed.left, relaxation=False, disjunctive=True))
    if allowed.budget.workers > 1:  # the two have had the same time to contradict each other
        outcomes = race(attempts, allowed.budget, lambda outcome: outcome.found or outcome.infeasible)
        return min(outcomes, key=lambda outcome: (not outcome.found, not outcome.infeasible))
    # Schedules of many blocks are more often found by local search.
    for attempt in attempts[:1] if len(model.instance.durations) >= PARAMETERS.many_blocks else attempts:
        outcome = confirmed(attempt, race([attempt], allowed.budget)[0], allowed.budget)
        if outcome.found or outcome.infeasible:
            break
    return outcome
