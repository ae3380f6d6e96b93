"""The longest way of operators to each group of a graph, and back: the times to fill and to drain a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.solver.placement.groups import Groups, neighbours, waits


@dataclass(frozen=True)
class LongestWays:
    """Per group the longest way that ends with it, ``ahead``, and of another kind, ``back``; ``before``: groups
    directly before it."""

    ahead: Sequence[float]
    back: Sequence[float]
    before: Sequence[Sequence[int]]

    def to(self, stage: set[int]) -> tuple[float, float]:
        """The longest way of each kind to a stage of these groups."""
        entries = {other for group in stage for other in self.before[group]} - stage
        return (max((self.ahead[other] for other in entries), default=0.0),
                max((self.back[other] for other in entries), default=0.0))


def longest_ways(before: Sequence[Sequence[int]], times: Sequence[float],
                 once: Sequence[float] | None = None) -> list[float]:
    """Per group the longest way that ends with it, if groups take ``times``; with ``once`` one group of a way, any,
    takes its time, and each other what it takes ``once``."""
    short = times if once is None else once
    plain: list[float] = []
    found: list[float] = []
    for group, sources in enumerate(before):
        ready = max((plain[other] for other in sources), default=0.0)
        plain.append(ready + short[group])
        found.append(max(max((found[other] for other in sources), default=0.0) + short[group], ready + times[group]))
    return found


def ways_of(groups: Groups) -> LongestWays:
    """The ways of a graph forwards, and there and back."""
    nodes = groups.problem.nodes
    tables = [(1, [node.times for node in nodes]),
              *((degree.devices, list(degree.times)) for degree in groups.problem.degrees)]
    least = np.array([min(time for devices, times in tables if devices <= groups.problem.devices
                          for time, kind in zip(times[i], groups.problem.kinds, strict=True)
                          if time is not None and kind.count) for i in range(len(nodes))])
    before, _ = neighbours(groups.count, waits(groups))
    ahead, both = ([float(times[list(members)].sum()) for members in groups.members]
                   for times in (least * [node.forward for node in nodes], least))
    return LongestWays(longest_ways(before, ahead), longest_ways(before, both), before)
