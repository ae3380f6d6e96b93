"""A lower bound on a step of a graph of stages, in any order, while the sizes of its micro-batches are partly open.

Each stage has a set of sizes that it may take. For one of them, b, of a mini-batch of B samples:

* *Load*: its devices run B / b forwards and backwards. They wait before the first forward until earlier stages have run
  its samples forwards (``head``), and after the last backward, which is the last block they run, earlier stages run
  these samples backwards (``tail``). So step >= head + (B / b)(forward + backward) + tail. An earlier stage of size c
  runs at least max(1, b / c) blocks for b samples, and none before it has its own head.
* *Memory*: before its first backward, which waits for all its successors, all later stages have run a forward; so the
  stage has run as many samples as the largest of their micro-batches has. If it has no room for these, no schedule
  exists.
* *Area*: the memory that a block keeps is occupied from the begin of its forward to the end of its backward, and in
  between later stages run its samples both ways. With room for k blocks at once, step >= (B / b) x that time / k.

A stage's bound is the least over its sizes, the step's the largest of all stages'. A value needed from another stage is
the least over that one's sizes, each time anew. So a bound of sets of sizes is valid for every choice from them, and
does not fall when a set shrinks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeAlias

from weft.solver.placement.joint.cuts import SizedCut

#: Per stage the sizes that it may take.
Open: TypeAlias = tuple[tuple[int, ...], ...]

#: The most that sums of times may lose by rounding, as a share of them; and that rooms may gain.
_ROUNDING = 1e-9


def open_sizes(cut: SizedCut) -> Open:
    """All sizes that each stage may take."""
    return tuple(tuple(costs) for costs in cut.costs)


def stage_bounds(cut: SizedCut, sizes: Open) -> list[dict[int, float]]:
    """Per stage and size that it may take, a lower bound on the step, infinite if its memory has no room."""
    trains = any(costs.trains for by_size in cut.costs for costs in by_size.values())
    head = _way(cut, sizes, cut.before, lambda stage, size: cut.costs[stage][size].least_forward)
    tail = (_way(cut, sizes, cut.before, lambda stage, size: cut.costs[stage][size].least_backward) if trains else
            _way(cut, sizes, cut.after, lambda stage, size: cut.costs[stage][size].least_forward))
    there_and_back = _turn(cut, sizes)
    needed = _samples_ahead(cut, sizes)
    batch, found = cut.sized.mini_batch, []
    for stage, allowed in enumerate(sizes):
        bounds = {}
        for size in allowed:
            costs = cut.costs[stage][size]
            bound = head(stage, size) + batch // size * (costs.least_forward + costs.least_backward) + tail(stage, size)
            if costs.room is not None and trains and costs.kept:
                blocks = math.floor(max(0.0, costs.room) / costs.kept * (1 + _ROUNDING))
                if blocks * size < max(size, needed[stage]):
                    bounds[size] = math.inf
                    continue
                life = costs.least_forward + there_and_back(stage, size) + costs.least_backward
                bound = max(bound, batch // size * life / blocks)
            elif costs.room is not None and costs.room < -_ROUNDING * costs.resident:
                bound = math.inf
            bounds[size] = bound * (1 - _ROUNDING)
        found.append(bounds)
    return found


def _way(cut: SizedCut, sizes: Open, before: Sequence[Sequence[int]], time: Callable[[int, int], float]
         ) -> Callable[[int, int], float]:
    """For a stage and its size, the least time that its first block waits for those ``before``, whose blocks take
    ``time``. Backwards in time it is the time after its last block."""
    @cache
    def ready(stage: int, samples: int) -> float:
        best = math.inf
        for size in sizes[stage]:
            blocks = max(1, samples // size)
            best = min(best, max(waits(stage, size) + blocks * time(stage, size),
                                 waits(stage, blocks * size) + time(stage, size)))
        return best

    @cache
    def waits(stage: int, samples: int) -> float:
        return max((ready(other, samples) for other in before[stage]), default=0.0)

    return waits


def _turn(cut: SizedCut, sizes: Open) -> Callable[[int, int], float]:
    """For a stage and a number of samples, the least time of all its successors to run these both ways."""
    @cache
    def through(stage: int, samples: int) -> float:
        best = math.inf
        for size in sizes[stage]:
            costs, blocks = cut.costs[stage][size], max(1, samples // size)
            one = costs.least_forward + costs.least_backward
            best = min(best, max(blocks * one, turn(stage, size) + one))
        return best

    @cache
    def turn(stage: int, samples: int) -> float:
        return max((through(other, samples) for other in cut.after[stage]), default=0.0)

    return turn


def _samples_ahead(cut: SizedCut, sizes: Open) -> list[int]:
    """Per stage the least number of samples of the largest micro-batch of any stage that follows it."""
    found = [0] * len(sizes)
    for stage in reversed(range(len(sizes))):  # deepest first: what follows a stage has a higher number
        found[stage] = max((max(found[other], min(sizes[other])) for other in cut.after[stage]), default=0)
    return found
