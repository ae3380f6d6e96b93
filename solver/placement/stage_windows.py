"""What a cutoff says before any search: how much work stages can hold, and which stages a group can be in."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.solver.placement.groups import Groups


@dataclass(frozen=True)
class Capacity:
    """``shares[j]``: at most how much work j stages hold together, as a multiple of the largest load allowed.

    Work is counted at each group's fastest kind. A kind on which every group takes at least 1/r times as long as on its
    fastest holds at most r times its load in work; j stages hold most on the j best devices.
    """

    shares: tuple[float, ...]

    def stages_for(self, work: float, cutoff: float) -> int:
        """The least number of stages that hold ``work`` under ``cutoff``; one too many where no number does."""
        # A last bit lost in a sum must not cost a stage.
        slack = 1e-9 * max(work, cutoff)
        for stages, share in enumerate(self.shares):
            if work <= share * cutoff + slack:
                return stages
        return len(self.shares)


@dataclass(frozen=True)
class Windows:
    """Per group the first and the last stage it can be in."""

    first: tuple[int, ...]
    last: tuple[int, ...]

    @property
    def freedom(self) -> int:
        """How many stages beyond one groups can be in, summed: the number of threshold variables."""
        return sum(last - first for first, last in zip(self.first, self.last, strict=True))

    @property
    def possible(self) -> bool:
        """Whether every group has a stage left."""
        return all(first <= last for first, last in zip(self.first, self.last, strict=True))


def capacity_of(groups: Groups, stages: int) -> Capacity:
    """The capacity of up to ``stages`` stages on the devices there are."""
    busy = groups.least > 0
    rates: list[float] = []
    for k, kind in enumerate(groups.problem.kinds):
        times = groups.times[busy, k]
        rate = float((groups.least[busy] / times).max()) if busy.any() else 1.0
        rates.extend([rate] * kind.count)
    rates.sort(reverse=True)
    return Capacity(tuple(float(sum(rates[:j])) for j in range(stages + 1)))


def relatives(groups: Groups) -> NDArray[np.bool_]:
    """``result[a, b]``: whether b is a or must be in a's stage or before it."""
    before = np.eye(groups.count, dtype=bool)
    for first, second in sorted(groups.order, key=lambda pair: pair[1]):
        before[second] |= before[first]
    return before


def work_around(before: NDArray[np.bool_], work: NDArray[np.float64]
                ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Per group the work of all that ``before`` puts before it, and of all it is put before, each with its own.

    By rows, a few hundred at a time: as numbers the whole table of ten thousand groups would fill most of a GiB.
    """
    head, tail = np.zeros(len(work)), np.zeros(len(work))
    for start in range(0, len(work), 512):
        rows = before[start:start + 512].astype(np.float64)
        head[start:start + 512] = rows @ work
        tail += work[start:start + 512] @ rows
    return head, tail


def windows_of(groups: Groups, stages: int, cutoff: float) -> Windows:
    """Stages that groups can be in if no load exceeds ``cutoff``.

    A group and all it follows are in the stages up to its own, so these must hold that work; likewise from the end.
    Work leaves out transfers, and stages before or after may be empty, so nothing possible is lost.
    """
    if not math.isfinite(cutoff):
        return Windows((0,) * groups.count, (stages - 1,) * groups.count)
    capacity = capacity_of(groups, stages)
    head, tail = work_around(relatives(groups), groups.least)
    return Windows(
        tuple(max(0, capacity.stages_for(work, cutoff) - 1) for work in head.tolist()),
        tuple(min(stages - 1, stages - capacity.stages_for(work, cutoff)) for work in tail.tolist()))
