"""From a placement problem to a graph of stages: least largest load, then least depth, each with a bound.

One goal after the other, never both in one sum. Graphs of a few paths need no encoding: a dynamic program over levels
proves both goals, and is tried first. If stages may be replicated it is the only exact technique.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container

from weft.solver.cpsat.budget import Budget
from weft.solver.placement import judge
from weft.solver.placement.bracket import Placer, Standing, applying
from weft.solver.placement.dag.constructions.by_encoding import ByEncoding
from weft.solver.placement.dag.constructions.by_levels import ByLevels
from weft.solver.placement.dag.constructions.by_rows import ByRows
from weft.solver.placement.dag.graph_bracket import GraphBracket
from weft.solver.placement.dag.stage_dag import GraphPlacement, stages_by_depth
from weft.solver.placement.groups import parts_of
from weft.solver.placement.params import PARAMS, PlacementParams
from weft.solver.placement.problem import PlacementError, PlacementProblem

#: The first that applies to the graph and its devices answers both questions.
WAYS: tuple[type[Placer[GraphBracket]], ...] = (ByLevels, ByRows, ByEncoding)


def place_graph(problem: PlacementProblem, *, slack: float = 0.0, time_limit: float = 60.0,
                effort: float | None = None, seed: int = 0, workers: int = 1,
                on_step: Callable[[Standing], None] = lambda _: None) -> GraphPlacement:
    """The graph of stages with the least largest load, and of these the shallowest.

    ``slack`` lets the shallowest have a largest load up to that fraction above the least one. Other arguments and
    errors are those of :func:`weft.solver.placement.chain.place.place`; a search cut short by time or Ctrl-C returns
    the best graph so far.
    """
    budget = Budget(seconds=time_limit, deterministic=effort, seed=seed, workers=workers)
    return place_graph_within(problem, budget, slack=slack, on_step=on_step)


def place_graph_within(problem: PlacementProblem, budget: Budget, *, slack: float = 0.0,
                       on_step: Callable[[Standing], None] = lambda _: None, params: PlacementParams = PARAMS,
                       without: Container[str] = ()) -> GraphPlacement:
    """:func:`place_graph` within ``budget``. ``without``: names of techniques to leave out."""
    if not 0 <= slack < math.inf:
        raise PlacementError(f"slack is {slack}, it must be 0 or more and finite")
    bracket = GraphBracket(problem, budget, slack, on_step, params, without)

    def steps() -> None:
        for technique in applying(WAYS, bracket, without):
            if bracket.run(technique, params.way_shares.get(technique.name, params.usual_share)) or bracket.over:
                break

    best = bracket.search(steps)
    stages, after, depths = stages_by_depth(problem, parts_of(best), [stage.devices for stage in best])
    objective = max(stage.load for stage in stages)
    return GraphPlacement(
        problem, stages, objective, judge.latency_of(problem, stages), min(bracket.bound, objective),
        solver={"groups": bracket.groups.count, "by": bracket.by, "steps": bracket.steps,
                "coarsening": None if bracket.by != ByRows.name else
                "the graph is too wide for proof: a few pieces a path, or a few orders, were searched",
                **bracket.spent()},
        after=after, depths=depths, depth_bound=min(bracket.depth_bound, max(depths)), slack=bracket.slack,
        least=min(bracket.least, objective))
