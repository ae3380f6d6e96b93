"""The trade-offs between the largest load and the depth of a graph of stages: the start of a search for a whole step.

A step takes about (micro-batches + depth - 1) times the largest load, so neither goal alone decides which graph has the
shortest. Each graph here has the least largest load of all graphs that are no deeper: together they are the Pareto
front of both goals, for loads below a limit. Graphs of a few paths by levels, to proof; others by the encoding, depth
by depth. Replicated stages of graphs that are too wide have one point, without proof.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.solver.cpsat.budget import Budget
from weft.solver.feasibility.infeasible import NoneFound
from weft.solver.placement.bracket import simple_bound
from weft.solver.placement.dag.depth_encoding import least_bottleneck_by_depth
from weft.solver.placement.dag.levels.ideals import TooWide
from weft.solver.placement.dag.levels.level_search import level_front
from weft.solver.placement.dag.place_graph import place_graph_within
from weft.solver.placement.dag.stage_dag import stages_by_depth
from weft.solver.placement.groups import Groups, groups_of, nodes_of, parts_of
from weft.solver.placement.params import PARAMS, PlacementParams
from weft.solver.placement.placement import meets
from weft.solver.placement.problem import PlacementProblem
from weft.solver.placement.reductions.interchangeable import order_branches, order_twins
from weft.solver.placement.refusals import NoPlacement


@dataclass(frozen=True)
class FrontPoint:
    """A graph of stages, as (kind, nodes) with numbers of devices: its largest load, and a depth it does not exceed."""

    load: float
    depth: int
    parts: tuple[tuple[int, tuple[int, ...]], ...]
    devices: tuple[int, ...]


@dataclass(frozen=True)
class Front:
    """``points``, from the least load to the least depth; none if nothing fits, or nothing below the limit. ``bound``
    on every largest load. ``whole``: proven that no trade-off is missing, loads compared as by
    :func:`~weft.solver.placement.placement.meets`: bounds are rounded down, by less than that. ``ties``: other graphs
    as good in both as one of the points, as far as they were found."""

    points: tuple[FrontPoint, ...]
    bound: float
    whole: bool
    ties: tuple[FrontPoint, ...] = ()


def front(problem: PlacementProblem, budget: Budget, most: float, params: PlacementParams = PARAMS, *,
          first: bool = False) -> Front:
    """The front of ``problem``, of loads below ``most``, as far as it is found within ``budget``. With ``first`` only
    the point of least load, which takes least time and says what ``most`` may be."""
    groups = groups_of(problem)
    least = simple_bound(groups)
    if least >= most:
        return Front((), least, True)
    try:
        with budget.part(params.way_shares.get("levels", params.usual_share)) as part:
            found, bound = level_front(groups, part, least=least, most=most, first=first, params=params)
    except TooWide:
        return _by_encoding(problem, groups, budget, most, params, first=first)
    points = [[FrontPoint(stages.value, depth, tuple(nodes_of(groups, stages)),
                          stages.devices or (1,) * len(stages.stages)) for stages in graphs]
              for graphs, depth in found]
    return Front(tuple(graphs[0] for graphs in points), bound, not (first and found),
                 tuple(dict.fromkeys(point for graphs in points for point in graphs[1:])))


def _by_encoding(problem: PlacementProblem, groups: Groups, budget: Budget, most: float,
                 params: PlacementParams, *, first: bool) -> Front:
    """The best graph that a search for one finds, and, depth by depth, the encoding's best shallower one."""
    try:
        with budget.part(params.depth_share) as part:
            best = place_graph_within(problem, part, params=params)
    except NoPlacement:
        return Front((), most, True)
    except NoneFound:
        return Front((), simple_bound(groups), False)
    point = FrontPoint(best.objective, best.depth, tuple(parts_of(best.stages)),
                       tuple(stage.devices for stage in best.stages))
    whole = meets(best.objective, best.bound) and best.depth <= best.depth_bound
    if first or problem.degrees or point.load >= most:
        return Front((point,) if point.load < most else (), best.bound, not first and meets(most, best.bound))
    shallower, rest = _shallower(order_branches(order_twins(groups)), point, budget, most, params)
    return Front((point, *shallower), best.bound, whole and rest)


def _shallower(groups: Groups, point: FrontPoint, budget: Budget, most: float,
               params: PlacementParams) -> tuple[list[FrontPoint], bool]:
    """The points shallower than ``point``, and whether it is proven that there are no others."""
    points: list[FrontPoint] = []
    whole = True
    while point.depth > 1:
        if budget.spent:
            return points, False
        with budget.part(params.usual_share) as part:
            found = least_bottleneck_by_depth(groups, part, None, point.load, deepest=point.depth - 1)
        if found.stages is None or found.stages.value >= most:
            return points, whole and (found.infeasible or meets(most, found.bound))
        whole &= meets(found.stages.value, found.bound)
        if points and meets(found.stages.value, points[-1].load):  # as good, and less deep
            points.pop()
        parts, devices = tuple(nodes_of(groups, found.stages)), (1,) * len(found.stages.stages)
        depth = max(stages_by_depth(groups.problem, parts)[2])
        point = FrontPoint(found.stages.value, min(depth, point.depth - 1), parts, devices)
        points.append(point)
    return points, whole
