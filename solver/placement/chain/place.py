"""From a placement problem to a chain of stages with a proven bound.

Exact reductions, slicings of random orders as a start, then the threshold encoding and refinement near the cuts, by
turns. Graphs too large for that are coarsened first (:mod:`weft.solver.placement.reductions.coarsen`, which is said in
the result); bounds always hold for the graph that was given. Whatever is returned has passed the judge.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from weft.solver.cpsat.budget import Budget
from weft.solver.placement import judge
from weft.solver.placement.bracket import Step
from weft.solver.placement.chain.chain_bracket import ChainBracket
from weft.solver.placement.chain.constructions.coarse_search import CoarseSearch
from weft.solver.placement.chain.constructions.packing import Packing
from weft.solver.placement.chain.constructions.random_slicings import RandomSlicings
from weft.solver.placement.chain.constructions.refinement import Refinement
from weft.solver.placement.chain.constructions.threshold_search import ThresholdSearch
from weft.solver.placement.chain.least_latency import least_latency
from weft.solver.placement.division import nodes_of
from weft.solver.placement.params import PARAMS, PlacementParams
from weft.solver.placement.placement import Placement, meets
from weft.solver.placement.problem import PlacementProblem
from weft.solver.placement.technique import Technique, applying

__all__ = ["FIRST", "ROUND", "WHOLE", "place", "place_within"]

#: What makes first placements.
FIRST: tuple[type[Technique[ChainBracket]], ...] = (Packing, RandomSlicings)
#: What then looks at all of the graph: the first that is for its size.
WHOLE: tuple[type[Technique[ChainBracket]], ...] = (ThresholdSearch, CoarseSearch)
#: What is called in every round after that.
ROUND: tuple[type[Technique[ChainBracket]], ...] = (Refinement, ThresholdSearch)


def place(problem: PlacementProblem, *, time_limit: float = 60.0, effort: float | None = None, seed: int = 0,
          workers: int = 1, latency: bool = False,
          on_step: Callable[[Step], None] = lambda _: None) -> Placement:
    """The placement with the least largest load found within ``time_limit`` seconds, with a proven bound.

    ``latency``: then, among those with that load, the one with the least latency. ``effort`` limits CP-SAT's
    deterministic time, so that a ``seed`` repeats a run exactly (with one worker and a time limit that is not met).
    Ctrl-C returns the best so far. Raises :class:`~weft.solver.placement.refusals.NoPlacement` where it is
    proven that nothing fits, and :class:`~weft.solver.feasibility.infeasible.NoneFound` where nothing was found.
    """
    budget = Budget(seconds=time_limit, deterministic=effort, seed=seed, workers=workers)
    return place_within(problem, budget, latency=latency, on_step=on_step)


def place_within(problem: PlacementProblem, budget: Budget, *, latency: bool = False,
                 on_step: Callable[[Step], None] = lambda _: None, params: PlacementParams = PARAMS,
                 without: Container[str] = ()) -> Placement:
    """:func:`place` within ``budget``, which says afterwards what was used of it and whether Ctrl-C came. ``without``:
    names of techniques to leave out, and of parts of the encoding
    (:func:`weft.solver.placement.encoding.least_load.least_bottleneck`)."""
    bracket = ChainBracket(problem, budget, on_step, params, without)
    latency_bound = None

    def steps() -> None:
        nonlocal latency_bound
        _search(bracket)
        if latency and bracket.best is not None and not budget.spent:
            latency_bound = _shorten(bracket)

    stages = bracket.search(steps)
    objective = max(stage.load for stage in stages)
    if meets(objective, bracket.bound):
        bracket.details["coarsening"] = None  # however it was found, it is the best there is
    return Placement(problem, stages, objective, judge.latency_of(problem, stages), min(bracket.bound, objective),
                     latency_bound, {**bracket.details, **bracket.spent()})


def _search(bracket: ChainBracket) -> None:
    """The least largest load, until it meets the bound, the time is over or more time would change nothing."""
    params = bracket.params
    # 1. First placements, from orders of the groups.
    bracket.say("slicing")
    for technique in applying(FIRST, bracket, bracket.without):
        bracket.run(technique, 1.0)
        if bracket.over:
            return
    # 2. A look at the whole graph, or at a coarse one where it is too large.
    for technique in applying(WHOLE, bracket, bracket.without):
        if bracket.run(technique, params.first_shares.get(technique.name, params.usual_share)):
            break
    # 3. Rounds with more and more of the time, until nothing comes of one.
    techniques = applying(ROUND, bracket, bracket.without)
    for share in params.round_shares:
        bracket.rounds += 1
        before, whole = bracket.best, False
        for technique in techniques:
            if bracket.over:
                return
            whole |= bracket.run(technique, share)
        if not whole and bracket.best is before:
            return


def _shorten(bracket: ChainBracket) -> float:
    """The least latency within the largest load that was found; returns a bound on it."""
    assert bracket.best is not None
    bracket.say("latency")
    problem, known = bracket.problem, judge.latency_of(bracket.problem, bracket.best)
    found, bound = least_latency(bracket.groups, bracket.budget, bracket.objective, known)
    if found is not None:
        better = bracket.stages_of(nodes_of(bracket.groups, found), ())
        if (not judge.breaches(problem, better) and judge.latency_of(problem, better) < known
                and max(stage.load for stage in better) <= bracket.objective * (1 + 1e-9)):
            bracket.best = better
    return bound
