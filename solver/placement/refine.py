"""Refining a placement: groups near the cuts are set free, all others stay, and the exact encoding decides.

"Near" is measured in work: a group may move to the next stage if the groups of its own stage that would have to move
with it (those that follow it there) take at most ``reach`` of the largest load; likewise to the stage before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from solver.cpsat import Budget
from solver.placement.exact import least_bottleneck
from solver.placement.groups import Groups
from solver.placement.slicing import Slicing
from solver.placement.windows import Windows, work_around

__all__ = ["near_cuts", "refine"]


def near_cuts(groups: Groups, slicing: Slicing, reach: float) -> Windows:
    """Windows in which groups with at most ``reach`` work between them and a cut may cross it; the rest stay."""
    stages = min(groups.problem.devices, groups.count)
    # Empty stages stand in front: how much a stage may hold depends on how many follow it.
    offset = stages - len(slicing.stages)
    stage_of = {g: index + offset for index, (_, inside) in enumerate(slicing.stages) for g in inside}
    within: list[list[tuple[int, int]]] = [[] for _ in range(stages)]
    for a, b in groups.order:
        if stage_of[a] == stage_of[b]:
            within[stage_of[a]].append((a, b))
    first, last = [0] * groups.count, [0] * groups.count
    for index, (_, inside) in enumerate(slicing.stages):
        stage = index + offset
        head, tail = _work_within(groups, inside, within[stage])
        for group, before, after in zip(inside, head, tail, strict=True):
            first[group] = stage - 1 if stage and before <= reach else stage
            last[group] = stage + 1 if stage + 1 < stages and after <= reach else stage
    return Windows(tuple(first), tuple(last))


def _work_within(groups: Groups, inside: Sequence[int], order: Sequence[tuple[int, int]]
                 ) -> tuple[list[float], list[float]]:
    """Per group of one stage its work with that of all it follows there, and with that of all that follows it there."""
    place = {group: index for index, group in enumerate(inside)}
    work = groups.least[list(inside)]
    before = np.eye(len(inside), dtype=bool)
    # Groups are numbered in topological order: by the later one, every row is complete when it is read.
    for a, b in sorted(order, key=lambda pair: pair[1]):
        before[place[b]] |= before[place[a]]
    head, tail = work_around(before, work)
    return head.tolist(), tail.tolist()


def refine(groups: Groups, start: Slicing, budget: Budget, least: float, *, turn: float,
           on_better: Callable[[Slicing], None] = lambda _: None) -> Slicing:
    """``start`` improved until nothing near the cuts helps or time is up.

    ``reach`` grows while neighbourhoods are searched to their end, and shrinks where one turn (``turn`` deterministic
    seconds) is too short for that.
    """
    best, reach = start, 0.05
    while not budget.spent and best.value > least * (1 + 1e-6) and 0.001 < reach <= 1:
        found = least_bottleneck(groups, budget, best, least, windows=near_cuts(groups, best, reach * best.value),
                                 deterministic=turn)
        if found.stages is not None and found.stages.value < best.value:
            best = found.stages
            on_better(best)
        elif found.proven:
            reach *= 2
        else:
            reach /= 3
    return best
