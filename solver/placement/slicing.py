"""Slicing: the best cut of one topological order into stages, by dynamic programming; tried over random orders.

Every placement is a slicing of *some* topological order, so this finds good ones quickly; its value is a cutoff for the
exact search. Random depth-first orders, forwards and from the end, keep what belongs together side by side.
After Archer et al., "Practical Performance Guarantees for Pipelined DNN Inference" (ICML 2024), who search orders and
slice each optimally.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solver.cpsat import Budget
from solver.placement.groups import Groups

__all__ = ["Slicing", "best_slicing", "depth_first_order", "interval_transfers", "prefix_differences", "slice_order"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Slicing:
    """``value``: the largest load. ``stages``: (kind, groups) in order, none empty. ``devices``: on how many
    devices each is (empty: one each)."""

    value: float
    stages: tuple[tuple[int, tuple[int, ...]], ...]
    devices: tuple[int, ...] = ()


def best_slicing(groups: Groups, budget: Budget, orders: int = 20, start: Slicing | None = None) -> Slicing | None:
    """The best over ``orders`` random topological orders, or ``None`` if none of them can be cut so that it fits."""
    chance = random.Random(budget.seed)
    best = start
    for number in range(orders):
        if budget.spent and best is not None:
            break
        found = slice_order(groups, depth_first_order(groups, chance, backwards=bool(number % 2)))
        if found is not None and (best is None or found.value < best.value):
            best = found
    return best


def depth_first_order(groups: Groups, chance: random.Random, *, backwards: bool = False) -> list[int]:
    """A random topological order in which a group follows its predecessor as closely as it can (or, ``backwards``, a
    group precedes its successor as closely as it can)."""
    ahead: list[list[int]] = [[] for _ in range(groups.count)]
    waits = [0] * groups.count
    for first, second in groups.order:
        if backwards:
            first, second = second, first
        ahead[first].append(second)
        waits[second] += 1
    ready = [group for group in range(groups.count) if not waits[group]]
    chance.shuffle(ready)
    order = []
    while ready:
        group = ready.pop()
        order.append(group)
        chance.shuffle(ahead[group])
        for follower in ahead[group]:
            waits[follower] -= 1
            if not waits[follower]:
                ready.append(follower)
    return order[::-1] if backwards else order


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


def slice_order(groups: Groups, order: Sequence[int]) -> Slicing | None:
    """The best way to cut ``order`` into stages, or ``None`` if none fits.

    ``table[used][i]``: the least largest load of order[i:] on exactly ``used`` devices of each kind. Built from the
    end, because how many micro-batches a stage holds depends on how many stages follow it.
    """
    problem, n = groups.problem, len(order)
    chosen = list(order)
    transfers = np.maximum(interval_transfers(groups, order), 0.0)
    loads = [prefix_differences(groups.times[chosen, k]) + kind.transfer_factor * transfers
             for k, kind in enumerate(problem.kinds)]
    empty = np.tril_indices(n + 1)
    for load in loads:
        load[empty] = float("inf")
    resident = prefix_differences(groups.resident[chosen])
    flying = prefix_differences(groups.per_micro_batch[chosen])

    nothing = np.full(n + 1, float("inf"))
    nothing[n] = 0.0
    counts = [min(kind.count, n) for kind in problem.kinds]
    table: dict[tuple[int, ...], Array] = {(0,) * len(counts): nothing}
    came: dict[tuple[int, ...], tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
    best: tuple[float, tuple[int, ...]] = (float("inf"), (0,) * len(counts))
    for used in sorted(itertools.product(*(range(count + 1) for count in counts)), key=lambda used: (sum(used), used)):
        if not any(used) or sum(used) > n:
            continue
        value, kind_of, cut = np.full(n + 1, float("inf")), np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64)
        for k, kind in enumerate(problem.kinds):
            if not used[k]:
                continue
            after = table[(*used[:k], used[k] - 1, *used[k + 1:])]
            cost = np.maximum(loads[k], after[np.newaxis, :])
            if kind.memory is not None:
                cost[resident + problem.in_flight(sum(used)) * flying > kind.memory * (1 + 1e-9)] = float("inf")
            at = cost.argmin(axis=1)
            here = cost[np.arange(n + 1), at]
            better = here < value
            value[better], kind_of[better], cut[better] = here[better], k, at[better]
        table[used], came[used] = value, (kind_of, cut)
        best = min(best, (float(value[0]), used))
    if best[0] == float("inf"):
        return None
    stages, (value0, used), i = [], best, 0
    while i < n:
        kind_of, cut = came[used]
        k, j = int(kind_of[i]), int(cut[i])
        stages.append((k, tuple(chosen[i:j])))
        used, i = (*used[:k], used[k] - 1, *used[k + 1:]), j
    return Slicing(value0, tuple(stages))


def prefix_differences(values: Array) -> Array:
    """``result[i, j]``: the sum of values[i:j]. Infinite values stand for themselves."""
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.where(finite, values, 0.0).cumsum()])
    result = sums[np.newaxis, :] - sums[:, np.newaxis]
    if not finite.all():
        bad = np.concatenate([[0], (~finite).cumsum()])
        result[bad[np.newaxis, :] > bad[:, np.newaxis]] = float("inf")
    return np.asarray(result)
