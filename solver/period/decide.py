"""One fixed period: a schedule of it, the proof that there is none, or neither within the time allowed."""

from __future__ import annotations

from itertools import islice

from weft.solver.cpsat.budget import Slice
from weft.solver.cpsat.confirm import confirmed
from weft.solver.cpsat.solve import Attempt, Outcome, race
from weft.solver.period.modulo_model import ModuloModel
from weft.solver.period.params import PARAMETERS
from weft.solver.period.periodic import Periodic, retime
from weft.solver.period.technique import DistancesAt
from weft.solver.relations.min_dist import Distances, least_distances
from weft.solver.ticks import TickProblem

__all__ = ["OPEN", "REFUTED", "Verdict", "decide", "refuted_in_parts", "size"]


def size(instance: TickProblem) -> float:
    """How many times the time of a small model a model of ``instance`` gets."""
    return max(1.0, len(instance.durations) / PARAMETERS.few_blocks)


class Verdict:
    """That there is no schedule, or that none is known."""


REFUTED, OPEN = Verdict(), Verdict()


def decide(instance: TickProblem, period: int, allowed: Slice, known: Periodic | None = None, *,
           parts: bool = True, distances: DistancesAt = least_distances) -> Periodic | Verdict:
    """A schedule of at most ``period`` ticks, the proof that there is none, or neither.

    ``known`` is a hint. Without ``parts`` all devices are modelled at once, as is best where halves of them have left
    the period open. ``distances``: what is known of ``period`` before a model is solved.
    """
    lags = distances(instance, period)
    if lags is None:
        return REFUTED
    if not allowed.budget.suffices(sum(len(row) * (len(row) - 1) // 2 for row in set(instance.blocks_on))):
        return OPEN
    if parts and _impossible_in_part(instance, period, lags, PARAMETERS.subset_before_whole, allowed):
        return REFUTED
    model = ModuloModel(instance, period, lags)
    if known is not None:
        model.hint(known)
    outcome = _race(model, allowed)
    if outcome.found:
        return retime(instance, period, model.starts(outcome.solver))
    return REFUTED if outcome.infeasible else OPEN


def _race(model: ModuloModel, allowed: Slice) -> Outcome:
    """A solution, or a proof that there is none, from two configurations: presolve refutes sooner; without it,
    propagation over the ``disjunctive`` devices finds schedules that it does not.
    """
    attempts = (Attempt(model.model, allowed.left, presolve=True, relaxation=False),
                Attempt(model.model, allowed.left, relaxation=False, disjunctive=True))
    if allowed.budget.workers > 1:  # the two have had the same time to object to each other
        outcomes = race(attempts, allowed.budget, lambda outcome: outcome.found or outcome.infeasible)
        return min(outcomes, key=lambda outcome: (not outcome.found, not outcome.infeasible))
    # Schedules of many blocks are found by local search rather.
    for attempt in attempts[:1] if len(model.blocks) >= PARAMETERS.many_blocks else attempts:
        outcome = confirmed(attempt, race([attempt], allowed.budget)[0], allowed.budget)
        if outcome.found or outcome.infeasible:
            break
    return outcome


def refuted_in_parts(instance: TickProblem, period: int, share: float, allowed: Slice,
                     distances: DistancesAt = least_distances) -> bool:
    """Whether ``period`` is refuted by ``distances``, or by parts of the devices, a ``share`` of them, on their own."""
    lags = distances(instance, period)
    return lags is None or _impossible_in_part(instance, period, lags, share, allowed)


def _impossible_in_part(instance: TickProblem, period: int, lags: Distances, share: float, allowed: Slice) -> bool:
    """Whether the blocks of a share of the devices, at the lags that hold for all, are refuted on their own.

    A period that is impossible for the blocks of some devices alone, at the lags that hold for all, is impossible.
    Conflicts are local more often than not: few devices are refuted far sooner than all of them.
    """
    each = min(allowed.left, PARAMETERS.subset_try * size(instance)) * share
    parts = iter(_parts(instance, share))
    while together := list(islice(parts, allowed.budget.workers)):
        attempts = [Attempt(ModuloModel(instance, period, lags, part).model, each, presolve=True, relaxation=False)
                    for part in together]
        outcomes = race(attempts, allowed.budget, lambda outcome: outcome.infeasible)
        if any(confirmed(attempt, outcome, allowed.budget).infeasible
               for attempt, outcome in zip(attempts, outcomes, strict=True)):
            return True
    return False


def _parts(instance: TickProblem, share: float) -> list[list[int]]:
    """Stretches of a share of the devices that have work, at their begin, at their end and in the middle, where there
    are many."""
    used = [device for device, on in enumerate(instance.blocks_on) if on]
    part = int(len(used) * share)
    return [] if len(used) < PARAMETERS.subsets_from else [used[first:first + part]
                                           for first in (0, len(used) - part, (len(used) - part) // 2)]
