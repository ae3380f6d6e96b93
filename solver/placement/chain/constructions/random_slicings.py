"""The best slicings of random orders: good placements quickly, whose largest load is a cutoff for the exact search.

After Archer et al., "Practical Performance Guarantees for Pipelined DNN Inference" (ICML 2024).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import ClassVar

from weft.solver.cpsat.budget import Budget
from weft.solver.placement.bracket import Placer
from weft.solver.placement.chain.chain_bracket import ChainBracket
from weft.solver.placement.groups import Division, Groups
from weft.solver.placement.orders.slice_order import depth_first_order, slice_order
from weft.solver.placement.params import PARAMS


class RandomSlicings(Placer[ChainBracket]):
    """Slicings on the graph itself if it is small, and on coarser ones, which is often as good and quicker."""

    name: ClassVar[str] = "random slicings"

    def improve(self, bracket: ChainBracket, share: float) -> bool:
        small = 2 * bracket.params.coarse_groups
        for groups in bracket.coarser:
            if groups.count <= small and not bracket.is_large(groups):
                best_slicing(groups, bracket.budget, bracket.params.slicing_orders, partial(bracket.offer_sure, groups))
                if bracket.over:
                    break
        bracket.details["slicing"] = None if bracket.best is None else bracket.objective
        return False


def best_slicing(groups: Groups, budget: Budget, orders: int = PARAMS.slicing_orders,
                 on_better: Callable[[Division], None] = lambda _: None) -> Division | None:
    """The best over ``orders`` random topological orders, or ``None`` if none of them can be cut so that it fits."""
    chance = random.Random(budget.seed)
    best: Division | None = None
    for number in range(orders):
        if budget.spent and number:
            break
        found = slice_order(groups, depth_first_order(groups, chance, backwards=bool(number % 2)), budget)
        if found is not None and (best is None or found.value < best.value):
            best = found
            on_better(best)
    return best
