"""The collective operations of a plan's ranks, in the order of each rank's list."""

from __future__ import annotations

from weft.runtime.plan.plan import Plan
from weft.runtime.plan.program import Reduce


def collective_rows(plan: Plan) -> dict[int, list[str]]:
    """Per rank, the instructions of its list that other ranks run too: blocks on several ranks, and sums of gradients
    that several ranks have."""
    ranks: dict[str, list[int]] = {}
    groups = plan.parameter_groups
    for rank, own in enumerate(plan.program.ranks):
        for work in plan.program.works(rank):
            ranks.setdefault(str(work), []).append(rank)
        for instruction in own:
            if isinstance(instruction, Reduce):
                ranks.setdefault(str(instruction), list(groups[instruction.stages]))
    return {rank: [str(instruction) for instruction in own if len(ranks.get(str(instruction), ())) > 1]
            for rank, own in enumerate(plan.program.ranks)}
