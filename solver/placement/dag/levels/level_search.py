"""Graphs of stages by dynamic programming over levels: exact, and quick for a graph of a few paths.

Under a limit on the load, the program of :mod:`weft.solver.placement.dag.levels.level_program` finds stages on the
devices there are, as shallow as possible, or proves that there are none. So the least largest load is found by
bisection and proven by a last run just below it. Cuts of the graph and their least needs do not change from run to run:
they are made once, for the largest load of a first chain.

After the dynamic programs of Piper (Tarnawski et al., NeurIPS 2021: ideals, one stage each) and GraphPipe (Jeon et al.,
ASPLOS 2025: series-parallel graphs by their splits); the levels are what makes it exact for graphs of stages of any
form.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from weft.solver.cpsat.budget import Budget
from weft.solver.placement.dag.levels.ideals import Ideals, TooWide
from weft.solver.placement.dag.levels.level_program import LevelProgram
from weft.solver.placement.groups import Division, Groups
from weft.solver.placement.orders.slice_order import depth_first_order, slice_order
from weft.solver.placement.params import PARAMS, PlacementParams


@dataclass(frozen=True)
class LevelGoal:
    """What is searched for. ``least``: a bound on the least largest load that is known. ``slack``: how much above the
    least load the shallowest stages may have, as a share of it. ``most``: larger loads are not wanted. ``max_cuts``: of
    ideals."""

    least: float
    slack: float = 0.0
    most: float = math.inf
    max_cuts: int = PARAMS.max_cuts


@dataclass(frozen=True)
class LevelSolved:
    """``stages`` from the first to the last, or ``None`` where no number of levels keeps to any limit; ``bound`` on the
    largest load, ``depth``, the least within ``limit``; ``steps``: levels that were packed or looked up in all."""

    stages: Division | None
    bound: float
    depth: int
    limit: float
    steps: int


def levels(groups: Groups, budget: Budget, goal: LevelGoal, *,
           on_found: Callable[[Division, float], None] = lambda *_: None,
           params: PlacementParams = PARAMS) -> LevelSolved:
    """The graph of stages with the least largest load, and then the least depth among those with a largest load no more
    than ``goal.slack`` above it. If there are no stages with less than ``goal.most``, ``bound`` is that.

    ``on_found`` gets stages and a bound on the largest load, as they are found. Raises
    :class:`~weft.solver.placement.dag.levels.ideals.TooWide` where the devices are of several kinds, a graph has too
    many ideals, a tensor joins operators of a level that nothing else does, or the budget ends first.
    """
    if sum(kind.count > 0 for kind in groups.problem.kinds) > 1:
        raise TooWide("several kinds of device")
    if groups.count > params.level_groups:
        raise TooWide(f"more than {params.level_groups} groups")
    start = first_chain(groups, budget, params)
    if start is not None:
        on_found(start, goal.least)
    top = _largest_limit(groups, start, goal)
    program = LevelProgram(Ideals(groups, budget, limit=top * (1 + goal.slack) * (1 + 1e-9), max_cuts=goal.max_cuts),
                           heavy_times=params.heavy_times)
    found, low = _first_below(program, max(goal.least, program.crowded()), top, params.bisection_gap)
    if found is None:
        return LevelSolved(None, low if goal.most < math.inf else math.inf, 0, math.inf, program.steps)
    found, low = _bisected(program, found, low, params.bisection_gap, on_found)
    limit = found.value * (1 + goal.slack + 1e-9)
    shallowest = program.run(limit, fewest=True)
    assert shallowest is not None
    return LevelSolved(shallowest, min(low, found.value), program.depth, limit, program.steps)


def level_front(groups: Groups, budget: Budget, *, least: float, most: float, first: bool = False,
                params: PlacementParams = PARAMS) -> tuple[list[tuple[list[Division], int]], float]:
    """All trade-offs between largest load and depth below ``most``: graphs of stages with their depth, of the
    least largest load of all that are no deeper, from the deepest on; and a bound on every largest load. With ``first``
    the first of them alone. A trade-off may have several graphs, as they were found on the way.

    Of each the load is proven by a last run just below it. ``least`` and errors as in :func:`levels`.
    """
    seen: list[Division] = []
    found = levels(groups, budget, LevelGoal(least=least, most=most, max_cuts=params.max_cuts),
                   on_found=lambda division, _: seen.append(division), params=params)
    if found.stages is None:
        return [], found.bound
    points = [([found.stages, *(other for other in seen if other.value <= found.limit)], found.depth)]
    if first or found.depth == 1:
        return points, found.bound
    top = _largest_limit(groups, None, LevelGoal(least=least, most=most))
    ideals = Ideals(groups, budget, limit=top, max_cuts=params.max_cuts)
    program, low, depth = LevelProgram(ideals, heavy_times=params.heavy_times), found.limit, found.depth
    while depth > 1:
        at_all = program.run(top, deepest=depth - 1)
        if at_all is None or at_all.value >= most:
            break
        best, low = _bisected(program, at_all, low, params.bisection_gap, lambda *_: None, depth - 1)
        shallowest = program.run(best.value * (1 + 1e-9), fewest=True, deepest=depth - 1)
        depth = program.depth
        points.append(([best] if shallowest is None else [shallowest, best], depth))
        low = best.value
    return points, found.bound


def fitting(groups: Groups, budget: Budget, on_found: Callable[[Division, float], None],
            params: PlacementParams = PARAMS) -> bool:
    """Whether any stages fit the devices, whatever their load, tensors that join operators of a level alone included;
    no load is proven. ``on_found`` gets them, then ones with smaller loads as they are found. Errors as in
    :func:`levels`.

    *Argument.* Under a limit that no stage exceeds a level's pieces fit together or apart by their memory alone, which
    adds up piece by piece whatever tensors join them. So the program covers all graphs of stages.
    """
    top = _largest_limit(groups, None, LevelGoal(0.0))
    ideals = Ideals(groups, budget, limit=top, max_cuts=params.max_cuts, loose=True)
    program = LevelProgram(ideals, heavy_times=params.heavy_times)
    found = program.run(top)
    if found is not None:
        _bisected(program, found, 0.0, params.bisection_gap, on_found)
    return found is not None


def _largest_limit(groups: Groups, start: Division | None, goal: LevelGoal) -> float:
    """A load that some stages keep to, or which is more than is wanted, or more than all stages can have."""
    kind, = (k for k, kind in enumerate(groups.problem.kinds) if kind.count)
    device = groups.problem.kinds[kind]
    slowest = max(float(times[:, kind].sum()) for devices, times in groups.degrees if devices <= device.count)
    top = start.value if start else slowest + sum(net.cost for net in groups.nets) * device.transfer_factor
    return max(min(top, goal.most), goal.least) * (1 + 1e-9)


def _first_below(program: LevelProgram, least: float, top: float, gap: float) -> tuple[Division | None, float]:
    """Stages within ``top``, or ``None``, and the largest limit refuted (``top`` where it is). Small limits leave
    little to look at: upwards, in growing steps."""
    low, found, more = least, None, gap
    limit = -1.0
    while found is None and limit < top:
        limit = min(top, low * (1 + more)) if least > 0 else top
        found = program.run(limit)
        low, more = (limit, more * 4) if found is None else (low, more)
    return found, low


def _bisected(program: LevelProgram, found: Division, low: float, gap: float,
              on_found: Callable[[Division, float], None], deepest: int | None = None) -> tuple[Division, float]:
    """The stages with the least largest load (of those no deeper than ``deepest``), and a bound that proves it."""
    on_found(found, low)
    just_below = True  # often what was found is the best there is
    while found.value > low * (1 + 1e-9):
        just_below = just_below or found.value <= low * (1 + gap)
        limit = found.value * (1 - 1e-9) if just_below else (low + found.value) / 2
        better, just_below = program.run(limit, deepest=deepest), False
        low, found = (limit, found) if better is None else (low, better)
        on_found(found, low)
    return found, low


def first_chain(groups: Groups, budget: Budget, params: PlacementParams = PARAMS) -> Division | None:
    """The best chain of stages of a few orders of the groups; a chain holds no less
    than the same stages as a graph."""
    chance = random.Random(budget.seed)
    orders = [list(range(groups.count)),
              *(depth_first_order(groups, chance, backwards=bool(i % 2)) for i in range(params.chain_orders - 1))]
    best: Division | None = None
    for number, order in enumerate(orders):
        if number and (budget.spent or groups.count > params.few_orders_groups):
            break
        chain = slice_order(groups, order)
        if chain is not None and (best is None or chain.value < best.value):
            best = chain
    return best
