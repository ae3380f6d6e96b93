"""Random topological orders that keep what belongs together side by side.

Every placement cuts *some* topological order into stages, so good orders give good placements. After Archer et al.,
"Practical Performance Guarantees for Pipelined DNN Inference" (ICML 2024), who search orders and slice each optimally.
"""

from __future__ import annotations

import random

from weft.solver.placement.groups import Groups

__all__ = ["depth_first_order"]


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
