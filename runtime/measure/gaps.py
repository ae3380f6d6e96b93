"""What lies between two blocks of a rank that waits for nothing: the executor's own time.

The executor starts receives and sends, tells the watchdog what it does and drops results between two blocks. In a
timeline that is the gap between a block's end and the next one's start where all that the next one needs had come
before. A plan has no such gaps, so they are counted with the blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from weft.runtime.plan.rank_map import RankMap
from weft.runtime.plan.timeline import Measured, Timeline
from weft.solver.problem import Problem

__all__ = ["executor_gaps", "with_gaps"]


def executor_gaps(problem: Problem, timelines: Sequence[Timeline]) -> list[float]:
    """Per rank, the median gap in seconds before a block whose producers had all ended, and whose messages had had
    their planned time, when the block before it ended; 0 where there is none."""
    found: list[list[float]] = [[] for _ in problem.devices]
    for timeline in timelines:
        ends = {(entry.block, entry.micro_batch): entry.end for entry in timeline.operations}
        rows: list[list[Measured]] = [[] for _ in problem.devices]
        for entry in timeline.operations:  # they are sorted by start
            rows[entry.rank].append(entry)
        for rank, row in enumerate(rows):
            for before, entry in pairwise(row):
                ready = max((ends[dependency.block, entry.micro_batch - dependency.distance]
                             + dependency.lag * timeline.seconds_per_unit
                             for dependency in problem.blocks[problem.index[entry.block]].after
                             if (dependency.block, entry.micro_batch - dependency.distance) in ends), default=0.0)
                if ready <= before.end:
                    found[rank].append(max(0.0, entry.start - before.end))
    return [median(gaps) if gaps else 0.0 for gaps in found]


def with_gaps(problem: Problem, gaps: Sequence[float], seconds_per_unit: float = 1.0) -> Problem:
    """``problem`` whose blocks last as long as their rank's gap, in seconds, more; and what comes from another rank is
    under way for as much less, as far as it is under way at all."""
    ranks, units = RankMap.of(problem), [gap / seconds_per_unit for gap in gaps]
    longest = [max(units[rank] for rank in ranks.of_block(i)) for i in range(len(problem.blocks))]
    return replace(problem, blocks=tuple(replace(
        block, duration=block.duration + longest[i],
        after=tuple(replace(dependency, lag=max(0.0, dependency.lag - longest[problem.index[dependency.block]]))
                    for dependency in block.after)) for i, block in enumerate(problem.blocks)))
