"""Sums over all intervals of an order of groups: what the stage order[i:j] has, for all i and j at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.solver.placement.groups import Groups

__all__ = ["Array", "interval_sums", "interval_transfers"]

Array: TypeAlias = NDArray[np.float64]


def interval_transfers(groups: Groups, order: Sequence[int]) -> Array:
    """``result[i, j]``: what the nets cut by the interval order[i:j] cost it, for i <= j.

    A net at positions p1 < ... < pm is *not* cut by [i, j) if the interval lies in a gap between neighbouring
    positions, or covers all of them. Both are rectangles in (i, j), added up as a two-dimensional difference.
    """
    n = len(order)
    position = np.empty(groups.count, dtype=np.int64)
    position[list(order)] = np.arange(n)
    total = sum(net.cost for net in groups.nets)
    corners = np.zeros((n + 2, n + 2))

    def spare(first: int, last: int, low: int, high: int, cost: float) -> None:
        """Take ``cost`` off every interval with first <= i <= last and low <= j <= high."""
        if first <= last and low <= high:
            corners[first, low] += cost
            corners[last + 1, low] -= cost
            corners[first, high + 1] -= cost
            corners[last + 1, high + 1] += cost

    for net in groups.nets:
        at = sorted(position[list(net.groups)].tolist())
        spare(0, at[0], at[-1] + 1, n, net.cost)
        for before, after in itertools.pairwise([-1, *at, n]):
            spare(before + 1, after, before + 1, after, net.cost)
    return np.asarray(total - corners.cumsum(axis=0).cumsum(axis=1)[: n + 1, : n + 1])


def interval_sums(values: Array) -> Array:
    """``result[i, j]``: the sum of values[i:j], which are 0 or more or infinite; each added up by itself, so that small
    ones keep their digits beside large ones."""
    n = len(values)
    result = np.zeros((n + 1, n + 1))
    result[:n, 1:] = np.where(np.tri(n, k=-1, dtype=bool), 0.0, values).cumsum(axis=1)
    return result
