"""The longest way of operators to each group of a graph, and back: what fills a pipeline and what drains it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.solver.placement.groups import Groups, Times, neighbours, waits

__all__ = ["Ways", "ways_of"]


@dataclass(frozen=True)
class Ways:
    """Per group the longest way that ends with it, forwards, and there and back; ``before``: groups directly before
    it; ``longest``: the longest way there and back."""

    forward: tuple[float, ...]
    both: tuple[float, ...]
    before: tuple[tuple[int, ...], ...]

    @property
    def longest(self) -> float:
        return max(self.both)

    def to(self, stage: set[int]) -> tuple[float, float]:
        """The longest way to a stage of these groups: forwards, and there and back."""
        entries = {other for group in stage for other in self.before[group]} - stage
        return (max((self.forward[other] for other in entries), default=0.0),
                max((self.both[other] for other in entries), default=0.0))


def ways_of(groups: Groups) -> Ways:
    """The ways of a graph."""
    nodes = groups.problem.nodes
    tables = [(1, [node.times for node in nodes]),
              *((degree.devices, list(degree.times)) for degree in groups.problem.degrees)]
    least = np.array([min(time for devices, times in tables if devices <= groups.problem.devices
                          for time, kind in zip(times[i], groups.problem.kinds, strict=True)
                          if time is not None and kind.count) for i in range(len(nodes))])
    ahead = least * [node.forward for node in nodes]
    before, _ = neighbours(groups.count, waits(groups))

    def longest(times: Times) -> tuple[float, ...]:
        found: list[float] = []
        for group, members in enumerate(groups.members):
            ready = max((found[other] for other in before[group]), default=0.0)
            found.append(ready + float(times[list(members)].sum()))
        return tuple(found)

    return Ways(longest(ahead), longest(least), tuple(map(tuple, before)))
