"""The best cut of one topological order into stages of a chain, on devices of any kinds, by dynamic programming."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from weft.solver.cpsat.budget import Budget
from weft.solver.placement.division import Division, largest_load
from weft.solver.placement.groups import Groups, room
from weft.solver.placement.orders.intervals import Array, interval_sums, interval_transfers

__all__ = ["slice_order"]


def slice_order(groups: Groups, order: Sequence[int], budget: Budget | None = None) -> Division | None:
    """The best way to cut ``order`` into stages, or ``None`` if none fits; of few devices only, where ``budget`` ends.

    ``table[used][i]``: the least largest load of order[i:] on exactly ``used`` devices of each kind. Built from the
    end, because how many micro-batches a stage holds depends on how many stages follow it.
    """
    problem, n = groups.problem, len(order)
    chosen = list(order)
    transfers = np.maximum(interval_transfers(groups, order), 0.0)
    loads = [interval_sums(groups.times[chosen, k]) + kind.transfer_factor * transfers
             for k, kind in enumerate(problem.kinds)]
    empty = np.tril_indices(n + 1)
    for load in loads:
        load[empty] = float("inf")
    resident = interval_sums(groups.resident[chosen])
    flying = interval_sums(groups.per_micro_batch[chosen])

    nothing = np.full(n + 1, float("inf"))
    nothing[n] = 0.0
    counts = [min(kind.count, n) for kind in problem.kinds]
    table: dict[tuple[int, ...], Array] = {(0,) * len(counts): nothing}
    came: dict[tuple[int, ...], tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
    best: tuple[float, tuple[int, ...]] = (float("inf"), (0,) * len(counts))
    for used in sorted(itertools.product(*(range(count + 1) for count in counts)), key=lambda used: (sum(used), used)):
        if not any(used) or sum(used) > n:
            continue
        if budget is not None and budget.spent and best[0] < float("inf"):
            break
        value, kind_of, cut = np.full(n + 1, float("inf")), np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64)
        for k, kind in enumerate(problem.kinds):
            if not used[k]:
                continue
            after = table[(*used[:k], used[k] - 1, *used[k + 1:])]
            cost = np.maximum(loads[k], after[np.newaxis, :])
            if kind.memory is not None:
                cost[resident + problem.in_flight(sum(used)) * flying > room(kind.memory)] = float("inf")
            at = cost.argmin(axis=1)
            here = cost[np.arange(n + 1), at]
            better = here < value
            value[better], kind_of[better], cut[better] = here[better], k, at[better]
        table[used], came[used] = value, (kind_of, cut)
        best = min(best, (float(value[0]), used))
    if best[0] == float("inf"):
        return None
    return _read(groups, chosen, best[1], came)


def _read(groups: Groups, chosen: Sequence[int], used: tuple[int, ...],
          came: Mapping[tuple[int, ...], tuple[NDArray[np.int64], NDArray[np.int64]]]) -> Division:
    """The stages of the whole order on ``used`` devices of each kind; ``came``: by devices used, kind and end of the
    first stage from each place on."""
    stages, i = [], 0
    while i < len(chosen):
        kind_of, cut = came[used]
        k, j = int(kind_of[i]), int(cut[i])
        stages.append((k, tuple(chosen[i:j])))
        used, i = (*used[:k], used[k] - 1, *used[k + 1:]), j
    return Division(largest_load(groups, stages), tuple(stages))
