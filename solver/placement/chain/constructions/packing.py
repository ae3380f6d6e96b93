"""A first placement of a graph of any size: an order packed into stages from its end, each as full as a limit allows.

The depth of a stage, and so its memory, is known when it is packed. A heuristic in time linear in the graph;
:mod:`weft.solver.placement.orders.slice_order` cuts an order optimally, in quadratic time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Self

from weft.solver.cpsat.budget import Budget
from weft.solver.placement.chain.chain_bracket import ChainBracket
from weft.solver.placement.groups import Division, Groups, largest_load, room
from weft.solver.placement.orders.slice_order import depth_first_order
from weft.solver.placement.params import PARAMS, PlacementParams


class Packing:
    """For graphs too large to cut an order optimally soon: two orders are packed, so that a stopped search has a
    result."""

    name: ClassVar[str] = "packing"

    @classmethod
    def of(cls, bracket: ChainBracket) -> Self | None:
        return cls() if bracket.is_large(bracket.groups) else None

    def improve(self, bracket: ChainBracket, share: float) -> bool:
        groups = bracket.groups
        chance = random.Random(bracket.budget.seed)
        for order in (range(groups.count), depth_first_order(groups, chance, backwards=True)):
            best_packing(groups, order, bracket.bound, bracket.budget, partial(bracket.offer_sure, groups),
                         bracket.params)
            if bracket.over:
                break
        return False


def best_packing(groups: Groups, order: Sequence[int], least: float, budget: Budget,
                 on_better: Callable[[Division], None], params: PlacementParams = PARAMS) -> None:
    """Pack ``order`` under smaller and smaller limits until ``budget`` ends; ``on_better`` gets the ones that fit.

    ``least``: a bound on the largest load.
    """
    failed = least
    for part in params.packing_limits:
        limit = max(least, 1e-300) * part
        found = _pack(groups, order, limit)
        if found is not None:
            on_better(found)
            break
        failed = limit
    else:
        return
    best = found.value
    for _ in range(params.packing_halvings):
        if budget.spent or best <= failed * 1.01:
            return
        limit = (failed + best) / 2
        found = _pack(groups, order, limit)
        if found is None:
            failed = limit
        elif found.value < best:
            best = found.value
            on_better(found)


def _pack(groups: Groups, order: Sequence[int], limit: float) -> Division | None:
    """``order`` in stages with no load above ``limit``, or ``None`` if it exceeds the devices."""
    left = [kind.count for kind in groups.problem.kinds]
    stages: list[tuple[int, tuple[int, ...]]] = []
    end = len(order)
    while end:
        reached = [(_furthest(groups, order, end, k, limit, len(stages) + 1), k) for k, count in enumerate(left)
                   if count]
        start, kind = min(reached, default=(end, 0))
        if start == end:
            return None
        stages.append((kind, tuple(order[start:end])))
        left[kind] -= 1
        end = start
    stages.reverse()
    return Division(largest_load(groups, stages), tuple(stages))


def _furthest(groups: Groups, order: Sequence[int], end: int, kind: int, limit: float, depth: int) -> int:
    """The first place from which up to ``end`` a stage keeps ``limit`` and the memory; ``end`` if none does."""
    device = groups.problem.kinds[kind]
    memory = float("inf") if device.memory is None else room(device.memory)
    in_flight = groups.problem.in_flight(depth)
    inside: dict[int, int] = {}
    work = cut = held = 0.0
    best = end
    for place in range(end - 1, -1, -1):
        group = order[place]
        work += float(groups.times[group, kind])
        held += float(groups.resident[group] + in_flight * groups.per_micro_batch[group])
        if work > limit or held > memory:
            break
        for index in groups.nets_of[group]:
            net = groups.nets[index]
            there = inside[index] = inside.get(index, 0) + 1
            if there == 1:
                cut += net.cost
            if there == len(net.groups):
                cut -= net.cost
        if work + max(0.0, cut) * device.transfer_factor <= limit:
            best = place
    return best
