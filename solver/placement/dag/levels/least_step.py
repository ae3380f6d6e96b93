"""How short a whole step can be: a bound over all graphs of stages, with the time that the pipeline takes to fill.

A stage runs a forward of all its operators once it has what they wait for, so its devices stand idle until the first
micro-batch has come through the longest way of operators before it, and after its last backward that way is gone back.
With N micro-batches, in any schedule,

    step >= N load(s) + before(s)      and      step >= N (load(s) - all-reduce(s)/N) + before(s) + back(s)

for every stage s; ``before`` and ``back`` are the forward's and the backward's times on that way, each operator on the
number of devices that serves it best, without transfers. The way depends on the stage alone: by convexity it never
comes back into the stage, so it ends in an operator that directly precedes one of the stage's and is the longest to
that operator in the whole graph. Of stages of one level that become one, the longer way counts. So the dynamic program
of :mod:`weft.solver.placement.dag.levels.level_program` finds the least step that some graph of stages would allow: by
bisection, of which the largest value refuted is the bound. Nor is a step shorter than the longest way through the whole
graph.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from weft.solver.cpsat.solve import Budget
from weft.solver.placement.dag.depth_encoding import waits
from weft.solver.placement.dag.levels.ideals import Ideals, TooWide
from weft.solver.placement.dag.levels.level_program import Program
from weft.solver.placement.groups import Groups, Times
from weft.solver.placement.orders.slice_order import Slicing

__all__ = ["LeastStep", "Ways", "least_step", "ways_of"]

#: Bisection stops at this fraction.
_CLOSE = 5e-3


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
    rows = [(1, [node.times for node in nodes]),
            *((degree.devices, list(degree.times)) for degree in groups.problem.degrees)]
    least = np.array([min(time for devices, times in rows if devices <= groups.problem.devices
                          for time, kind in zip(times[i], groups.problem.kinds, strict=True)
                          if time is not None and kind.count) for i in range(len(nodes))])
    ahead = least * [node.forward for node in nodes]
    before: list[list[int]] = [[] for _ in range(groups.count)]
    for first, second in waits(groups):
        before[second].append(first)

    def longest(times: Times) -> tuple[float, ...]:
        found: list[float] = []
        for group, members in enumerate(groups.members):
            ready = max((found[other] for other in before[group]), default=0.0)
            found.append(ready + float(times[list(members)].sum()))
        return tuple(found)

    return Ways(longest(ahead), longest(least), tuple(map(tuple, before)))


@dataclass(frozen=True)
class LeastStep:
    """``bound`` on the step of any schedule of any graph of stages; ``stages`` that were found on the way, the last of
    which would allow about that, if their schedule lost no more time (none where all exceed what was asked for)."""

    bound: float
    stages: tuple[Slicing, ...]


def least_step(groups: Groups, budget: Budget, *, least: float, most: float,
               ideals: Ideals | None = None) -> LeastStep:
    """The least step that graphs of stages allow, as far as it is below ``most``.

    ``least``: a bound on the least largest load; ``ideals``, and
      :class:`~weft.solver.placement.dag.levels.ideals.TooWide`, which is raised, as of
      :func:`~weft.solver.placement.dag.levels.level_search.levels`.
    """
    there = [k for k, kind in enumerate(groups.problem.kinds) if kind.count]
    if len(there) != 1:
        raise TooWide("several kinds of device")
    count, ways = groups.problem.micro_batches or 1, ways_of(groups)
    low, high = max(least, ways.longest / count), most / count * (1 + 1e-9)
    if low >= high:
        return LeastStep(most, ())
    ideals = Ideals(groups, budget, limit=high, devices=groups.problem.devices, in_a_row=False, twins=True,
                    alike=ideals)
    program = Program(ideals, there[0], ways)
    plain = Program(ideals, there[0])
    degree = {r: d for d, (r, _) in enumerate(plain.degrees)}
    found: list[Slicing] = []
    middle = high
    while high > low * (1 + _CLOSE):
        better = program.run(middle)
        if better is None:
            low = middle
        else:
            high = middle
            found.append(replace(better, value=max(
                plain.load(inside, degree[r]) for (_, inside), r in zip(better.stages, better.devices, strict=True))))
        middle = (low + high) / 2
    return LeastStep(min(most, low * count), tuple(found))
