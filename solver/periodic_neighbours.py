"""Large neighbourhood search over steady states, for problems of which CP-SAT finds no whole one in reasonable time.

Most devices keep what they run in which order. A few, among them those where the period's critical cycle waits for a
device, are ordered anew by the model of :mod:`solver.modulo`, at a period that is a little shorter. What the others do
is in the lags between the free blocks, all of it: whatever the model finds is a steady state with the others' order,
and memory on the others depends on their order alone. (Shaw, "Using constraint programming and local search methods",
CP 1998; freeing what is critical is how job shops are searched: Nowicki and Smutnicki, Management Science 1996.)
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import ceil

import numpy as np

from solver.closure import lag_range
from solver.cpsat import Budget, run
from solver.cyclic import Periodic, Rings, critical_blocks, in_order, lags_between
from solver.modulo import ModuloModel

__all__ = ["improve_nearby"]

#: How much shorter a period is asked for, as a share: at first, and at least.
_FIRST_STEP, _LAST_STEP = 0.01, 0.001
#: Deterministic seconds for one neighbourhood.
_EACH = 0.05
#: After so many neighbourhoods of a size without success they grow.
_TRIES = 3


def improve_nearby(start: Periodic, low: int, budget: Budget, on_better: Callable[[Periodic], None] = lambda _: None,
                   *, deterministic: float) -> Periodic:
    """The shortest period found by neighbourhoods of ``start``; none below ``low`` is looked for.

    Takes about ``deterministic`` seconds of ``budget``. Neighbourhoods shrink with success and grow without.
    """
    devices = len(start.instance.capacity)
    draw = random.Random(budget.seed)
    until = budget.deterministic_used + deterministic
    best, size, step, failures = start, max(2, devices // 2), _FIRST_STEP, 0
    while best.period > low and size <= devices and not budget.spent and budget.deterministic_used < until:
        target = max(low, min(int(best.period * Fraction(1 - step)), ceil(best.period) - 1))
        found = _reordered(best, target, _neighbourhood(best, size, draw), budget)
        if found is not None and found.period < best.period:
            best, size, step, failures = found, max(2, size - 1), min(2 * step, _FIRST_STEP), 0
            on_better(best)
        else:
            failures += 1
            if failures % _TRIES == 0:
                size = size + max(1, devices // 32)
            step = max(step * 0.9, _LAST_STEP)
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


def _reordered(found: Periodic, period: int, free: list[int], budget: Budget) -> Periodic | None:
    """The blocks of the devices ``free`` in another order, so that ``period`` is enough, if that is found."""
    instance, rings = found.instance, found.rings
    fixed: Rings = [() if device in free else ring for device, ring in enumerate(rings)]
    blocks = sorted({i for device in free for i in instance.blocks_on[device]})
    lags = lags_between(instance, fixed, period, blocks)
    if lags is None:
        return None
    model = ModuloModel(instance, period, np.maximum(lags, -(lag_range(instance, period) + 1) * period), free)
    model.hint(found)
    outcome = run(model.model, budget, workers=1, deterministic=_EACH, presolve=True, relaxation=False)
    if not outcome.found:
        return None
    reordered = in_order(instance, [model.ring(device, outcome.solver) if device in free else ring
                                    for device, ring in enumerate(rings)])
    return None if reordered is None else replace(reordered, copies=found.copies)
