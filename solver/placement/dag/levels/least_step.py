"""A lower bound on a whole step over all graphs of stages, with the time that the pipeline takes to fill.

A stage runs a forward of all its operators once their inputs are available, so its devices are idle until the first
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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from weft.solver.cpsat.budget import Budget
from weft.solver.placement.dag.levels.ideals import Ideals
from weft.solver.placement.dag.levels.level_program import LevelProgram
from weft.solver.placement.dag.levels.ways import ways_of
from weft.solver.placement.groups import Division, Groups
from weft.solver.placement.params import PARAMS, PlacementParams


@dataclass(frozen=True)
class LeastStep:
    """``bound`` on the step of any schedule of any graph of stages; ``stages`` that were found on the way, the last of
    which would allow about that, if their schedule lost no more time (none where all exceed ``most``)."""

    bound: float
    stages: tuple[Division, ...]


def least_step(groups: Groups, budget: Budget, *, least: float, most: float,
               load_of: Callable[[Sequence[int], int], float] | None = None,
               params: PlacementParams = PARAMS) -> LeastStep:
    """The least step that graphs of stages allow, as far as it is below ``most``.

    ``least``: a bound on the least largest load; ``load_of``: another bound on what a stage adds to a step, a
    micro-batch (:class:`~weft.solver.placement.dag.levels.level_program.LevelProgram`). Raises
    :class:`~weft.solver.placement.dag.levels.ideals.TooWide` as
    :func:`~weft.solver.placement.dag.levels.level_search.levels` does.
    """
    count, ways = groups.problem.micro_batches or 1, ways_of(groups)
    low, high = max(least, 0.0 if load_of else max(ways.back) / count), most / count * (1 + 1e-9)
    if low >= high:
        return LeastStep(most, ())
    ideals = Ideals(groups, budget, limit=high, max_cuts=params.max_cuts)
    program, plain = LevelProgram(ideals, ways, load_of=load_of), LevelProgram(ideals)
    degree = {r: d for d, (r, _) in enumerate(plain.degrees)}
    found: list[Division] = []
    middle = high
    while high > low * (1 + params.step_gap):
        better = program.run(middle)
        if better is None:
            low = middle
        else:
            high = middle
            found.append(replace(better, value=max(
                plain.load(inside, degree[r]) for (_, inside), r in zip(better.stages, better.devices, strict=True))))
        middle = (low + high) / 2
    return LeastStep(min(most, low * count), tuple(found))
