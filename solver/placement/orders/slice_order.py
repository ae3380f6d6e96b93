"""Slicing: the best cut of one topological order into stages, by dynamic programming; tried over random orders.

Every placement is a slicing of *some* topological order, so this finds good ones quickly; its value is a cutoff for the
exact search. Random depth-first orders, forwards and from the end, keep what belongs together side by side.
After Archer et al., "Practical Performance Guarantees for Pipelined DNN Inference" (ICML 2024), who search orders and
slice each optimally.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.solver.cpsat.solve import Budget
from weft.solver.placement.groups import Groups, room

__all__ = ["Slicing", "best_slicing", "depth_first_order", "heaviest", "interval_sums", "interval_transfers",
           "largest_load", "slice_order"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Slicing:
    """``value``: the largest load. ``stages``: (kind, groups) in order, none empty. ``devices``: on how many
    devices each is (empty: one each)."""

    value: float
    stages: tuple[tuple[int, tuple[int, ...]], ...]
    devices: tuple[int, ...] = ()


def best_slicing(groups: Groups, budget: Budget, orders: int = 20,
                 on_better: Callable[[Slicing], None] = lambda _: None) -> Slicing | None:
    """The best over ``orders`` random topological orders, or ``None`` if none of them can be cut so that it fits."""
    chance = random.Random(budget.seed)
    best: Slicing | None = None
    for number in range(orders):
        if budget.spent and number:
            break
        found = slice_order(groups, depth_first_order(groups, chance, backwards=bool(number % 2)), budget)
        if found is not None and (best is None or found.value < best.value):
            best = found
            on_better(best)
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


def slice_order(groups: Groups, order: Sequence[int], budget: Budget | None = None) -> Slicing | None:
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
    stages, used, i = [], best[1], 0
    while i < n:
        kind_of, cut = came[used]
        k, j = int(kind_of[i]), int(cut[i])
        stages.append((k, tuple(chosen[i:j])))
        used, i = (*used[:k], used[k] - 1, *used[k + 1:]), j
    return Slicing(largest_load(groups, stages), tuple(stages))


def interval_sums(values: Array) -> Array:
    """``result[i, j]``: the sum of values[i:j], which are 0 or more or infinite; each added up by itself, so that small
    ones keep their digits beside large ones."""
    n = len(values)
    result = np.zeros((n + 1, n + 1))
    result[:n, 1:] = np.where(np.tri(n, k=-1, dtype=bool), 0.0, values).cumsum(axis=1)
    return result


def largest_load(groups: Groups, stages: Sequence[tuple[int, tuple[int, ...]]], devices: Sequence[int] = ()) -> float:
    """The largest load of these stages (kind, groups), each on so many ``devices`` (default: one each)."""
    return max(_loads(groups, stages, devices))


def heaviest(groups: Groups, slicing: Slicing) -> int:
    """The index of the stage with the largest load."""
    loads = _loads(groups, slicing.stages, slicing.devices)
    return loads.index(max(loads))


def _loads(groups: Groups, stages: Sequence[tuple[int, tuple[int, ...]]], devices: Sequence[int]) -> list[float]:
    on = list(devices) or [1] * len(stages)
    times = dict(groups.degrees)
    stage_of = {group: index for index, (_, inside) in enumerate(stages) for group in inside}
    loads = [float(times[r][list(inside), kind].sum()) for (kind, inside), r in zip(stages, on, strict=True)]
    for net in groups.nets:
        touched = {stage_of[group] for group in net.groups}
        if len(touched) > 1:
            for stage in touched:
                loads[stage] += net.cost * groups.problem.kinds[stages[stage][0]].transfer_factor / on[stage]
    return loads
