"""The best cut of one order into stages that may be replicated: PipeDream's dynamic program, solved to its optimum.

``table[s][m][i]``: the least largest load of order[i:] in s stages on m devices. PipeDream (Narayanan et al., SOSP
2019) keeps the number of devices only; here the number of stages is there too, for what a stage holds depends on how
many follow it (:mod:`weft.solver.placement.problem`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.solver.placement.division import Division, largest_load
from weft.solver.placement.groups import Groups, room
from weft.solver.placement.orders.intervals import interval_sums, interval_transfers

__all__ = ["slice_replicated", "slices_by_stages"]


def slice_replicated(groups: Groups, order: Sequence[int]) -> Division | None:
    """The best way to cut ``order`` into stages on the devices of the only kind there is, or ``None`` if none fits.

    Raises ``ValueError`` where there are several kinds.
    """
    return min(slices_by_stages(groups, order), key=lambda division: division.value, default=None)


def slices_by_stages(groups: Groups, order: Sequence[int]) -> list[Division]:
    """Likewise the best for every number of stages that fits, by rising number."""
    problem, n, chosen = groups.problem, len(order), list(order)
    k, = (k for k, kind in enumerate(problem.kinds) if kind.count)
    kind = problem.kinds[k]
    degrees = [(r, times) for r, times in groups.degrees if r <= kind.count]
    transfers = np.maximum(interval_transfers(groups, order), 0.0) * kind.transfer_factor
    loads = [interval_sums(times[chosen, k]) + transfers / r for r, times in degrees]
    for load in loads:
        load[np.tril_indices(n + 1)] = float("inf")
    resident = interval_sums(groups.resident[chosen])
    flying = interval_sums(groups.per_micro_batch[chosen])
    table = np.full((min(n, kind.count) + 1, kind.count + 1, n + 1), float("inf"))
    table[0, 0, n] = 0.0
    cut, degree_of = np.zeros(table.shape, np.int64), np.zeros(table.shape, np.int64)
    for stages in range(1, len(table)):
        fitting = []
        for (r, _), load in zip(degrees, loads, strict=True):
            held = resident + problem.in_flight(stages) * flying / r
            fits = np.ones_like(held, bool) if kind.memory is None else held <= room(kind.memory)
            fitting.append(np.where(fits, load, float("inf")))
        for used in range(stages, kind.count + 1):
            value = table[stages, used]
            for d, ((r, _), load) in enumerate(zip(degrees, fitting, strict=True)):
                if r > used or not np.isfinite(table[stages - 1, used - r]).any():
                    continue
                cost = np.maximum(load, table[stages - 1, used - r][np.newaxis, :])
                at = cost.argmin(axis=1)
                here = cost[np.arange(n + 1), at]
                better = here < value
                value[better], cut[stages, used][better], degree_of[stages, used][better] = here[better], at[better], d

    def read(stages: int, used: int) -> Division:
        parts, on, i = [], [], 0
        while i < n:
            d, j = int(degree_of[stages, used, i]), int(cut[stages, used, i])
            parts.append((k, tuple(chosen[i:j])))
            on.append(degrees[d][0])
            stages, used, i = stages - 1, used - degrees[d][0], j
        return Division(largest_load(groups, parts, on), tuple(parts), tuple(on))

    best = table[:, :, 0].argmin(axis=1)
    return [read(stages, int(used)) for stages, used in enumerate(best) if np.isfinite(table[stages, used, 0])]
