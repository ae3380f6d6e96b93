"""A cut with a size for each stage as a block problem, and its quickest schedule: 1F1B on its stages, with as many
micro-batches in flight as fit.

The neighbours of a choice: one stage at another size, or one group of operators in a neighbouring stage.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from weft.solver.judge.validate import InvalidSchedule
from weft.solver.placement.dag.stage_blocks import StageLoad, one_f_one_b, stage_problem
from weft.solver.placement.groups import Groups, neighbours, waits
from weft.solver.placement.joint.cuts import SizedCut, cut_of
from weft.solver.placement.problem import PlacementError
from weft.solver.portfolio import Candidate
from weft.solver.problem import Problem
from weft.solver.schedule import Schedule
from weft.solver.timing import DeadlockError

#: The most that rooms may gain by rounding, as a share of them.
_ROUNDING = 1e-9


class Sizes(NamedTuple):
    """``cut`` with a size of micro-batch for each of its stages."""

    cut: SizedCut
    sizes: tuple[int, ...]


def candidate_of(cut: SizedCut, sizes: tuple[int, ...], bound: float) -> Candidate[Sizes]:
    """The block problem of ``cut`` in micro-batches of ``sizes``, a step of which is not below ``bound``. It starts
    with 1F1B, timed and judged, where that fits."""
    problem = cut.sized.any
    works = cut.works(sizes)
    blocks = stage_problem(problem.name, works, cut.after, time_unit=problem.time_unit,
                           memory_unit="B" if problem.memory_unit == "byte" else problem.memory_unit)
    rounds = cut.sized.mini_batch // max(sizes)
    start = _one_f_one_b(blocks, works, cut, rounds)
    return Candidate(Sizes(cut, sizes), bound, blocks, rounds, start, found=start)


def _one_f_one_b(problem: Problem, works: list[StageLoad], cut: SizedCut, rounds: int) -> Schedule | None:
    room = [math.floor(min(work.memory / work.kept * (1 + _ROUNDING), 2**31)) * work.micro_batch
            if work.memory is not None and work.kept else math.inf for work in works]
    if not all(room):
        return None
    with suppress(DeadlockError, InvalidSchedule):
        return one_f_one_b(problem, works, cut.after, rounds, room)
    return None


def other_sizes(cut: SizedCut, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
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


def other_cuts(cut: SizedCut, sizes: Sequence[int], groups: Groups) -> Iterator[tuple[SizedCut, tuple[int, ...]]]:
    """One group moved to a stage that has a group directly before or after it, if stages form no cycle; every stage at
    its size. The only group of a stage stays there."""
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
                found = cut_of(cut.sized, parts, cut.devices)
                size_of = {min(nodes): size for (_, nodes), size in zip(parts, sizes, strict=True)}
                moved = tuple(size_of[nodes[0]] for _, nodes in found.parts)
                if all(size in costs for size, costs in zip(moved, found.costs, strict=True)):
                    yield found, moved
