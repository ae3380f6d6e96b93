"""From a placement problem to a chain of stages with a proven bound.

Exact reductions, slicings of random orders as a start, then the threshold encoding and refinement near the cuts, by
turns. Graphs too large for that are coarsened first (:mod:`weft.solver.placement.reductions.coarsen`, which is said in
the result); bounds always hold for the graph that was given. Whatever is returned has passed the judge.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from weft.solver.control.stopping import breakable
from weft.solver.cpsat.budget import Budget
from weft.solver.feasibility.infeasible import NoneFound
from weft.solver.placement import judge
from weft.solver.placement.bracket import Step
from weft.solver.placement.chain.chain_bracket import ChainBracket
from weft.solver.placement.chain.constructions.coarse_search import CoarseSearch
from weft.solver.placement.chain.constructions.packing import Packing
from weft.solver.placement.chain.constructions.random_slicings import RandomSlicings
from weft.solver.placement.chain.constructions.refinement import Refinement
from weft.solver.placement.chain.constructions.threshold_search import ThresholdSearch
from weft.solver.placement.chain.least_latency import least_latency
from weft.solver.placement.division import divided, nodes_of
from weft.solver.placement.encoding.least_load import EVERYTHING, Options
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
          workers: int = 1, latency: bool = False, options: Options = EVERYTHING,
          on_step: Callable[[Step], None] = lambda _: None) -> Placement:
    """The placement with the least largest load found within ``time_limit`` seconds, with a proven bound.

    ``latency``: then, among those with that load, the one with the least latency. ``effort`` limits CP-SAT's
    deterministic time, so that a ``seed`` repeats a run exactly (with one worker and a time limit that is not met).
    Ctrl-C returns the best so far. Raises :class:`~weft.solver.placement.refusals.NoPlacement` where it is
    proven that nothing fits, and :class:`~weft.solver.feasibility.infeasible.NoneFound` where nothing was found.
    """
    budget = Budget(seconds=time_limit, deterministic=effort, seed=seed, workers=workers)
    return place_within(problem, budget, latency=latency, options=options, on_step=on_step)


def place_within(problem: PlacementProblem, budget: Budget, *, latency: bool = False, options: Options = EVERYTHING,
                 on_step: Callable[[Step], None] = lambda _: None, params: PlacementParams = PARAMS,
                 without: Container[str] = ()) -> Placement:
    """:func:`place` within ``budget``, which says afterwards what was used of it and whether Ctrl-C came. ``without``:
    names of techniques to leave out."""
    bracket = ChainBracket(problem, budget, options, on_step, params)
    latency_bound = None
    try:
        with breakable():
            _search(bracket, without)
            if latency and bracket.best is not None and not budget.spent:
                latency_bound = _shorten(bracket)
    except KeyboardInterrupt:
        budget.interrupted = True
    if bracket.best is None:
        if budget.interrupted:
            raise KeyboardInterrupt
        raise NoneFound(f"found no placement that fits the devices' memory in {budget.elapsed:.0f} s, and no "
                       "proof that there is none; give more time, more memory or more devices")
    return _answer(bracket, latency_bound)


def _search(bracket: ChainBracket, without: Container[str]) -> None:
    """The least largest load, until it meets the bound, the time is over or more time would change nothing."""
    params = bracket.params
    # 1. First placements, from orders of the groups.
    bracket.say("slicing")
    for technique in applying(FIRST, bracket, without):
        bracket.run(technique, 1.0)
        if bracket.over:
            return
    # 2. A look at the whole graph, or at a coarse one where it is too large.
    for technique in applying(WHOLE, bracket, without):
        if bracket.run(technique, params.first_shares.get(technique.name, params.usual_share)):
            break
    # 3. Rounds with more and more of the time, until nothing comes of one.
    techniques = applying(ROUND, bracket, without)
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
    bracket.say("latency")
    problem, groups, stages = bracket.problem, bracket.groups, bracket.judged()
    known = judge.latency_of(problem, stages)
    found, bound = least_latency(groups, bracket.budget, max(stage.load for stage in stages), known)
    if found is not None:
        better = nodes_of(groups, found)
        judged = judge.stages_of(problem, better)
        if (not judge.breaches(problem, judged) and judge.latency_of(problem, judged) < known
                and max(s.load for s in judged) <= max(s.load for s in stages) * (1 + 1e-9)):
            bracket.best = divided(bracket.whole, better)
    return bound


def _answer(bracket: ChainBracket, latency_bound: float | None) -> Placement:
    problem, stages = bracket.problem, bracket.judged()
    faults = judge.breaches(problem, stages)
    if faults:
        raise judge.InvalidPlacement("; ".join(faults))
    objective = max(stage.load for stage in stages)
    if meets(objective, bracket.bound):
        bracket.details["coarsening"] = None  # however it was found, it is the best there is
    return Placement(problem, stages, objective, judge.latency_of(problem, stages), min(bracket.bound, objective),
                     latency_bound, {**bracket.details, **bracket.spent()})
