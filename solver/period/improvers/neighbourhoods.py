"""Large neighbourhood search over steady states, for problems of which CP-SAT finds no whole one in reasonable time.

Some devices keep what they run in which order. The others, among them those where the period's critical cycle waits for
a device, are ordered anew by the model of :mod:`weft.solver.period.modulo_model`, at a period that is a little shorter.
What the first do is in the lags between the free blocks, all of it: whatever the model finds is a steady state with
their order, and memory on them depends on their order alone. What every schedule of the period keeps, its least
distances, is in those lags too. (Shaw, "Using constraint programming and local search methods", CP 1998; freeing what
is critical is how job shops are searched: Nowicki and Smutnicki, Management Science 1996.)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import ClassVar, Self

import numpy as np

from weft.solver.cpsat.budget import Budget, Slice
from weft.solver.cpsat.solve import Attempt, race
from weft.solver.period.bracket import Bracket
from weft.solver.period.modulo_model import ModuloModel
from weft.solver.period.params import PARAMETERS
from weft.solver.period.periodic import Periodic, Rings, critical_blocks, fits_pools, in_order, lags_between
from weft.solver.period.technique import Improver, Task
from weft.solver.relations.min_dist import Distances, close_paths, least_distances

__all__ = ["Neighbourhoods", "improve_nearby"]


class Neighbourhoods(Improver):
    """One run from each new best, unless it is close to the bound: there whole periods are decided instead."""

    name: ClassVar[str] = "neighbourhoods"

    def __init__(self) -> None:
        self._improved: Fraction | None = None  # up to where the best has been improved

    @classmethod
    def of(cls, bracket: Bracket, task: Task) -> Self | None:
        """Any problem has neighbourhoods."""
        return cls()

    def improve(self, bracket: Bracket, time: Slice) -> None:
        """Takes some of what is left, more for more blocks."""
        best = bracket.best
        if best.period == self._improved:
            return
        if best.period >= bracket.refuted * PARAMETERS.neighbourhoods_close:
            improve_nearby(best, int(bracket.refuted) + 1, time.budget, lambda found: bracket.offer(found, self.name),
                           deterministic=min(time.left * PARAMETERS.improvers,
                                             len(best.starts) * PARAMETERS.neighbourhoods_block))
        self._improved = bracket.best.period


def improve_nearby(start: Periodic, low: int, budget: Budget, on_better: Callable[[Periodic], None] = lambda _: None,
                   *, deterministic: float) -> Periodic:
    """The shortest period found by neighbourhoods of ``start``; none below ``low`` is looked for.

    Takes about ``deterministic`` seconds of ``budget``, less where nothing is found for long. A neighbourhood that is
    refuted is followed by a larger one, one that stays open by a smaller one; with success the steps grow.
    """
    devices = len(start.instance.capacity)
    draw = random.Random(budget.seed)
    until = budget.deterministic_used + deterministic
    least = min(2, devices)
    best, size = start, max(least, devices // 4)
    step, open_ones = PARAMETERS.neighbourhoods_first_step, 0
    target, lags = 0, None
    while (best.period > low and open_ones < PARAMETERS.neighbourhoods_patience and not budget.spent
           and budget.deterministic_used < until):
        wanted = max(low, min(int(best.period * Fraction(1 - step)), ceil(best.period) - 1))
        if wanted != target:
            target, lags = wanted, least_distances(best.instance, wanted)
        if lags is None:
            low = target + 1
            continue
        found, refuted = _reorder(best, target, lags, [_neighbourhood(best, size, draw) for _ in range(budget.workers)],
                                  budget)
        if found is not None:
            best, step, open_ones = found, min(2 * step, PARAMETERS.neighbourhoods_most_step), 0
            on_better(best)
            continue
        step = max(step * 0.7, PARAMETERS.neighbourhoods_last_step)
        if not refuted:
            open_ones += 1
            size = max(least, size - max(1, size // 8))
        elif size < devices:
            size = min(devices, size + max(1, size // 8))
        else:
            low = target + 1
    return best


def _neighbourhood(found: Periodic, size: int, draw: random.Random) -> list[int]:
    """``size`` devices: where the critical cycle runs, their neighbours, and some by chance."""
    devices = len(found.instance.capacity)
    on_cycle = set(critical_blocks(found))
    free = {device for device, on in enumerate(found.instance.blocks_on) if len(on_cycle.intersection(on)) > 1}
    free = set(draw.sample(sorted(free), min(len(free), size)))
    while len(free) < size:
        near = draw.choice(sorted(free)) + draw.choice((-1, 1)) if free else -1
        free.add(near if draw.random() < 2 / 3 and 0 <= near < devices else draw.randrange(devices))
    return sorted(free)


def _reorder(found: Periodic, period: int, closed: Distances, neighbourhoods: Sequence[Sequence[int]],
             budget: Budget) -> tuple[Periodic | None, bool]:
    """The blocks of some of the ``neighbourhoods`` in another order, so that ``period`` is enough, if that is found;
    else whether all of them are refuted. ``closed`` are the least distances at ``period``.
    """
    models = [model for free in neighbourhoods if (model := _model(found, period, closed, free)) is not None]
    attempts = [Attempt(model.model, PARAMETERS.neighbourhoods_each, presolve=True, relaxation=False)
                for model in models]
    outcomes = race(attempts, budget, lambda outcome: outcome.found)
    for model, outcome in zip(models, outcomes, strict=True):
        if outcome.found:
            rings = [model.ring(device, outcome.solver) if device in model.devices else ring
                     for device, ring in enumerate(found.rings)]
            reordered = in_order(found.instance, rings)
            if reordered is not None and reordered.period < found.period and fits_pools(reordered):
                return replace(reordered, micro_batches_per_period=found.micro_batches_per_period), False
    return None, all(outcome.infeasible for outcome in outcomes)


def _model(found: Periodic, period: int, closed: Distances, free: Sequence[int]) -> ModuloModel | None:
    """The blocks of the devices ``free`` among the others in their order; ``None`` if the lags alone refute that.

    What holds for all orders, the least distances, holds for those with the others' order.
    """
    instance = found.instance
    fixed: Rings = [() if device in free else ring for device, ring in enumerate(found.rings)]
    blocks = sorted({i for device in free for i in instance.blocks_on[device]})
    lags = lags_between(instance, fixed, period, blocks)
    if lags is None:
        return None
    among = np.ix_(blocks, blocks)
    lags[among] = np.maximum(lags[among], closed[among])
    if not close_paths(lags, blocks):
        return None
    model = ModuloModel(instance, period, lags, free)
    model.hint(found)
    return model
