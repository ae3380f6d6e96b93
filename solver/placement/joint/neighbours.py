"""What lies next to a choice: one stage at another size, or one group of operators in a neighbouring stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from weft.solver.placement.dag.front import FrontPoint
from weft.solver.placement.groups import Groups, neighbours, waits
from weft.solver.placement.joint.cuts import Cut, cut_of
from weft.solver.placement.problem import PlacementError

__all__ = ["other_cuts", "other_sizes"]


def other_sizes(cut: Cut, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """One stage at the next size, larger or smaller; the busiest stages first."""
    def load(stage: int) -> float:
        costs = cut.costs[stage][sizes[stage]]
        return (costs.least_forward + costs.least_backward) / sizes[stage]

    for stage in sorted(range(len(sizes)), key=lambda stage: -load(stage)):
        allowed: Sequence[int] = list(cut.costs[stage])
        at = allowed.index(sizes[stage])
        for other in (at + 1, at - 1):
            if 0 <= other < len(allowed):
                yield (*sizes[:stage], allowed[other], *sizes[stage + 1:])


def other_cuts(cut: Cut, sizes: Sequence[int], groups: Groups) -> Iterator[tuple[Cut, tuple[int, ...]]]:
    """One group in a stage that has a group directly before or after it, where stages stay no circle; every stage at
    its size. A stage that has one group alone keeps it."""
    stage_of = {node: stage for stage, (_, nodes) in enumerate(cut.parts) for node in nodes}
    at = [stage_of[members[0]] for members in groups.members]
    before, after = neighbours(groups.count, waits(groups))
    for group, members in enumerate(groups.members):
        here = at[group]
        if len(cut.parts[here][1]) == len(members):
            continue
        for there in sorted({at[other] for other in (*before[group], *after[group])} - {here}):
            kind = cut.parts[there][0]
            if any(cut.sized.any.nodes[node].times[kind] is None for node in members):
                continue
            parts = [(kind, tuple(node for node in nodes if node not in members) if stage == here else
                      (*nodes, *members) if stage == there else nodes) for stage, (kind, nodes) in enumerate(cut.parts)]
            with suppress(PlacementError):  # stages that follow each other in a circle
                found = cut_of(cut.sized, FrontPoint(0.0, 0, tuple(parts), cut.devices))
                size_of = {min(nodes): size for (_, nodes), size in zip(parts, sizes, strict=True)}
                moved = tuple(size_of[nodes[0]] for _, nodes in found.parts)
                if all(size in costs for size, costs in zip(moved, found.costs, strict=True)):
                    yield found, moved
