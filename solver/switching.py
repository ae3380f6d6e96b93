"""Which plan should run in which part of a training, if plans differ in cost from part to part and a switch costs too?

A shortest path over parts x plans by dynamic programming (Bellman, 1957): the least total that ends part i with plan p
is the least over plans q of the total that ends part i - 1 with q, plus the switch from q to p, plus p's cost in
part i. Exact; time grows with parts times the square of plans.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Switching:
    """``plans``: the plan of each part. ``total``: their costs and those of the switches between them."""

    plans: tuple[int, ...]
    total: float


def best_switching(costs: Sequence[Sequence[float]], switches: Sequence[Sequence[float]]) -> Switching | None:
    """The cheapest plans of all parts: ``costs[i][p]`` is the cost of plan p in part i (infinite if it cannot run),
    ``switches[q][p]`` the cost of a switch from q to p; the first plan needs none. ``None`` if a part has no plan that
    can run or be switched to. Ties go to fewer switches as far as the last parts decide, then to plans listed first.
    """
    if not costs:
        return Switching((), 0.0)
    totals = list(costs[0])
    came: list[list[int]] = []
    for row in costs[1:]:
        through = [[total + (switches[q][p] if q != p else 0.0) for q, total in enumerate(totals)]
                   for p in range(len(row))]
        before = [p if ways[p] == min(ways) else ways.index(min(ways)) for p, ways in enumerate(through)]
        totals = [through[p][q] + row[p] for p, q in enumerate(before)]
        came.append(before)
    last = min(range(len(totals)), key=totals.__getitem__)
    if math.isinf(totals[last]):
        return None
    path = [last]
    for before in reversed(came):
        path.append(before[path[-1]])
    return Switching(tuple(reversed(path)), totals[last])
