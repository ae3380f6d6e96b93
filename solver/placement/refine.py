"""Refining a placement: groups near the cuts are set free, all others stay, and the exact encoding decides.

"Near" is measured in work: a group may move to the next stage if the groups of its own stage that would have to move
with it (those that follow it there) take at most ``reach`` of the largest load; likewise to the stage before.
"""

from __future__ import annotations

from collections.abc import Callable

from solver.cpsat import Budget
from solver.placement.exact import least_bottleneck
from solver.placement.groups import Groups
from solver.placement.slicing import Slicing
from solver.placement.windows import Windows

__all__ = ["near_cuts", "refine"]


def near_cuts(groups: Groups, slicing: Slicing, reach: float) -> Windows:
    """Windows in which groups with at most ``reach`` work between them and a cut may cross it; the rest stay."""
    stages = min(groups.problem.devices, groups.count)
    # Empty stages stand in front: how much a stage may hold depends on how many follow it.
    offset = stages - len(slicing.stages)
    stage_of = {g: index + offset for index, (_, inside) in enumerate(slicing.stages) for g in inside}
    after: list[list[int]] = [[] for _ in range(groups.count)]
    before: list[list[int]] = [[] for _ in range(groups.count)]
    for a, b in groups.order:
        if stage_of[a] == stage_of[b]:
            after[a].append(b)
            before[b].append(a)
    first, last = [0] * groups.count, [0] * groups.count
    for group in range(groups.count):
        stage = stage_of[group]
        first[group] = stage - 1 if stage and _work(groups, group, before, reach) <= reach else stage
        last[group] = stage + 1 if stage + 1 < stages and _work(groups, group, after, reach) <= reach else stage
    return Windows(tuple(first), tuple(last))


def _work(groups: Groups, group: int, neighbours: list[list[int]], limit: float) -> float:
    """The work of ``group`` and all it reaches over ``neighbours``; something above ``limit`` where it is more."""
    seen, stack, work = {group}, [group], 0.0
    while stack:
        at = stack.pop()
        work += float(groups.least[at])
        if work > limit:
            break
        for neighbour in neighbours[at]:
            if neighbour not in seen:
                seen.add(neighbour)
                stack.append(neighbour)
    return work


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
