"""Refining a placement: some groups are free, all others stay, and the exact encoding decides.

Free are, first, the stages around the one with the largest load, whole; then the groups near any cut. "Near" is
measured in work: a group may move to the next stage if the groups of its own stage that would have to move with it
(those that follow it there) take at most ``reach`` of the largest load; likewise to the stage before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from weft.solver.cpsat.budget import Budget
from weft.solver.placement.bracket import Placer
from weft.solver.placement.chain.chain_bracket import ChainBracket
from weft.solver.placement.encoding.least_load import least_bottleneck
from weft.solver.placement.groups import Division, Groups, heaviest
from weft.solver.placement.params import PARAMS, PlacementParams
from weft.solver.placement.placement import meets
from weft.solver.placement.stage_windows import Windows, work_around


class Refinement(Placer[ChainBracket]):
    """The best placement refined on the graph itself."""

    name: ClassVar[str] = "refinement"

    def improve(self, bracket: ChainBracket, share: float) -> bool:
        refine_within(bracket, bracket.groups, share)
        return False


def refine_within(bracket: ChainBracket, groups: Groups, share: float) -> None:
    """Refine the best placement in terms of ``groups``, if there is one."""
    start = bracket.start(groups)
    if start is None:
        return
    bracket.say("refining near the cuts")
    with bracket.part(share) as part:
        each = min(part.deterministic_left, part.left) * bracket.params.neighbourhood_part
        refine(groups, start, part, bracket.bound, each=each, on_better=partial(bracket.offer_sure, groups),
               params=bracket.params)


def near_cuts(groups: Groups, division: Division, reach: float) -> Windows:
    """Windows in which groups with at most ``reach`` work between them and a cut may cross it; the rest stay."""
    stages = min(groups.problem.devices, groups.count)
    # Empty stages are first: the memory of a stage depends on the number that follow it.
    offset = stages - len(division.stages)
    stage_of = {g: index + offset for index, (_, inside) in enumerate(division.stages) for g in inside}
    within: list[list[tuple[int, int]]] = [[] for _ in range(stages)]
    for a, b in groups.order:
        if stage_of[a] == stage_of[b]:
            within[stage_of[a]].append((a, b))
    first, last = [0] * groups.count, [0] * groups.count
    for index, (_, inside) in enumerate(division.stages):
        stage = index + offset
        head, tail = _work_within(groups, inside, within[stage])
        for group, before, after in zip(inside, head, tail, strict=True):
            first[group] = stage - 1 if stage and before <= reach else stage
            last[group] = stage + 1 if stage + 1 < stages and after <= reach else stage
    return Windows(tuple(first), tuple(last))


def _work_within(groups: Groups, inside: Sequence[int], order: Sequence[tuple[int, int]]
                 ) -> tuple[list[float], list[float]]:
    """Per group of one stage its work with that of all its predecessors there, and with that of all its successors
    there."""
    place = {group: index for index, group in enumerate(inside)}
    work = groups.least[list(inside)]
    before = np.eye(len(inside), dtype=bool)
    # Groups are numbered in topological order: by the later one, every row is complete when it is read.
    for a, b in sorted(order, key=lambda pair: pair[1]):
        before[place[b]] |= before[place[a]]
    head, tail = work_around(before, work)
    return head.tolist(), tail.tolist()


def around(groups: Groups, division: Division, centre: int, width: int) -> Windows:
    """Windows in which the groups of ``width`` neighbouring stages, ``centre`` (an index into ``division``) in their
    middle, may be in any of these; the rest stay."""
    stages = min(groups.problem.devices, groups.count)
    offset = stages - len(division.stages)
    low = max(0, min(centre + offset - (width - 1) // 2, stages - width))
    high = min(stages - 1, low + width - 1)
    first, last = [0] * groups.count, [0] * groups.count
    for index, (_, inside) in enumerate(division.stages):
        stage = index + offset
        free = low <= stage <= high
        for group in inside:
            first[group], last[group] = (low, high) if free else (stage, stage)
    return Windows(tuple(first), tuple(last))


def refine(groups: Groups, start: Division, budget: Budget, least: float, *, each: float,
           on_better: Callable[[Division], None] = lambda _: None, params: PlacementParams = PARAMS) -> Division:
    """``start`` improved until no neighbourhood helps or time is up, with at most ``each`` deterministic seconds for
    one.

    Neighbourhoods grow while they are searched to their end without an improvement. Those around the heaviest stage
    stop if that is too short for one; ``reach`` then shrinks instead.
    """
    best = start

    def try_within(windows: Windows) -> bool | None:
        """Whether it helped; ``None`` if that is unknown."""
        nonlocal best
        found = least_bottleneck(groups, budget, best, least, windows=windows, deterministic=each)
        if found.stages is not None and found.stages.value < best.value:
            best = found.stages
            on_better(best)
            return True
        return False if found.proven else None

    def going() -> bool:
        return not budget.spent and not meets(best.value, least)

    width = 2
    while going() and width <= len(best.stages):
        helped = try_within(around(groups, best, heaviest(groups, best), width))
        if helped is None:
            break
        width = 2 if helped else width + 1
    reach = params.first_reach
    while going() and params.least_reach < reach <= 1:
        helped = try_within(near_cuts(groups, best, reach * best.value))
        if not helped:
            reach = reach / 3 if helped is None else reach * 2
    return best
