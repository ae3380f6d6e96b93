"""A cut with a size for each stage as a block problem, and the quickest schedule of it: 1F1B on its stages, with no
more in flight than there is room for."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import NamedTuple

from weft.solver.judge.validate import InvalidSchedule
from weft.solver.placement.dag.stage_blocks import StageWork, one_f_one_b, stage_problem
from weft.solver.placement.joint.cuts import Cut
from weft.solver.portfolio import Candidate
from weft.solver.problem import Problem
from weft.solver.schedule import Schedule
from weft.solver.timing import DeadlockError

__all__ = ["Sizes", "candidate_of"]

#: What rooms may gain by rounding, as a share of them.
_ROUNDING = 1e-9


class Sizes(NamedTuple):
    """``cut`` with a size of micro-batch for each of its stages."""

    cut: Cut
    sizes: tuple[int, ...]


def candidate_of(cut: Cut, sizes: tuple[int, ...], bound: float) -> Candidate[Sizes]:
    """The block problem of ``cut`` in micro-batches of ``sizes``, a step of which is not below ``bound``. It starts
    with 1F1B, timed and judged, where that fits."""
    problem = cut.sized.any
    works = cut.works(sizes)
    blocks = stage_problem(problem.name, works, cut.after, time_unit=problem.time_unit,
                           memory_unit="B" if problem.memory_unit == "byte" else problem.memory_unit)
    rounds = cut.sized.mini_batch // max(sizes)
    start = _one_f_one_b(blocks, works, cut, rounds)
    return Candidate(Sizes(cut, sizes), bound, blocks, rounds, start, found=start)


def _one_f_one_b(problem: Problem, works: list[StageWork], cut: Cut, rounds: int) -> Schedule | None:
    room = [math.floor(min(work.memory / work.kept * (1 + _ROUNDING), 2**31)) * work.micro_batch
            if work.memory is not None and work.kept else math.inf for work in works]
    if not all(room):
        return None
    with suppress(DeadlockError, InvalidSchedule):
        return one_f_one_b(problem, works, cut.after, rounds, room)
    return None
