"""The best cut of one topological order into stages of a chain, on devices of any kinds, by dynamic programming.

``table[s, used][i]``: the least largest load of order[i:] in s stages on exactly ``used`` devices of each kind. Built
from the end, because how many micro-batches a stage holds depends on how many stages follow it. PipeDream's program
(Narayanan et al., SOSP 2019) for stages that may be replicated keeps the number of devices only; with the number of
stages it is solved to its optimum here (:mod:`weft.solver.placement.problem`).

Sums over all intervals of an order of groups: what the stage order[i:j] has, for all i and j at once.

Random topological orders that keep what belongs together side by side.

Every placement cuts *some* topological order into stages, so good orders give good placements. After Archer et al.,
"Practical Performance Guarantees for Pipelined DNN Inference" (ICML 2024), who search orders and slice each optimally.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.solver.cpsat.budget import Budget
from weft.solver.placement.groups import Division, Groups, largest_load, room

#: A number of stages, and of devices used of each kind.
_State: TypeAlias = tuple[int, tuple[int, ...]]


def slice_order(groups: Groups, order: Sequence[int], budget: Budget | None = None) -> Division | None:
    """The best way to cut ``order`` into stages, or ``None`` if none fits; of few devices only, where ``budget`` ends.
    """
    problem, n, chosen = groups.problem, len(order), list(order)
    transfers = np.maximum(interval_transfers(groups, order), 0.0)
    resident, flying = interval_sums(groups.resident[chosen]), interval_sums(groups.per_micro_batch[chosen])
    # What a stage may be on: a kind, and so many devices of it.
    on = [(k, r, times) for k, kind in enumerate(problem.kinds) for r, times in groups.degrees if r <= kind.count]
    loads = [interval_sums(times[chosen, k]) + problem.kinds[k].transfer_factor * transfers / r for k, r, times in on]
    for load in loads:
        load[np.tril_indices(n + 1)] = float("inf")
    nothing = np.full(n + 1, float("inf"))
    nothing[n] = 0.0
    table: dict[_State, Array] = {(0, (0,) * len(problem.kinds)): nothing}
    came: dict[_State, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
    best: tuple[float, _State] | None = None
    depth, fitting = 0, loads
    for stages, used in _states(groups, n):
        if budget is not None and budget.spent and best is not None:
            break
        if stages > depth:
            depth, fitting = stages, [
                _fitting(load, resident + problem.in_flight(stages) * flying / r, problem.kinds[k].memory)
                for (k, r, _), load in zip(on, loads, strict=True)]
        value, chosen_on, cut = np.full(n + 1, float("inf")), np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64)
        for number, (k, r, _) in enumerate(on):
            after = table.get((stages - 1, (*used[:k], used[k] - r, *used[k + 1:])))
            if after is None or not np.isfinite(after).any():
                continue
            cost = np.maximum(fitting[number], after[np.newaxis, :])
            at = cost.argmin(axis=1)
            here = cost[np.arange(n + 1), at]
            better = here < value
            value[better], chosen_on[better], cut[better] = here[better], number, at[better]
        table[stages, used], came[stages, used] = value, (chosen_on, cut)
        if value[0] < (float("inf") if best is None else best[0]):
            best = float(value[0]), (stages, used)
    if best is None:
        return None
    parts, devices, i, state = [], [], 0, best[1]
    while i < n:
        (options, cuts), (stages, used) = came[state], state
        (k, r, _), j = on[options[i]], int(cuts[i])
        parts.append((k, tuple(chosen[i:j])))
        devices.append(r)
        state, i = (stages - 1, (*used[:k], used[k] - r, *used[k + 1:])), j
    return Division(largest_load(groups, parts, devices), tuple(parts), tuple(devices) if problem.degrees else ())


def _states(groups: Groups, most: int) -> Iterator[_State]:
    """By rising number of stages, ``most`` at most; where none is replicated each is on one device."""
    kinds, replicated = groups.problem.kinds, bool(groups.problem.degrees)
    every = list(itertools.product(*(range(kind.count + 1 if replicated else min(kind.count, most) + 1)
                                     for kind in kinds)))
    for stages in range(1, min(groups.problem.devices, most) + 1):
        yield from ((stages, used) for used in every
                    if sum(used) == stages or (replicated and sum(used) > stages))


def _fitting(load: Array, held: Array, memory: float | None) -> Array:
    """``load``, infinite where what is held exceeds the memory."""
    return load if memory is None else np.where(held <= room(memory), load, float("inf"))


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
