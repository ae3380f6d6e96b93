"""From a placement problem to a chain of stages with a proven bound.

Exact reductions, slicings of random orders as a start, then the threshold encoding and refinement near the cuts, by
turns. Graphs too large for that are coarsened first (:mod:`weft.solver.placement.reductions.coarsen`, as stated in the
result); bounds are always valid for the given graph. Every result has passed the judge.

The second goal: among placements whose largest load stays within a limit, the least latency.

Latency is the time of one micro-batch if a stage starts when all its predecessors have ended
(:func:`weft.solver.placement.judge.latency_of`): branches in separate stages overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from weft.solver.cpsat.budget import Budget
from weft.solver.cpsat.solve import run
from weft.solver.late import cp_model
from weft.solver.placement import judge
from weft.solver.placement.bracket import Placer, Standing, applying
from weft.solver.placement.chain.chain_bracket import ChainBracket
from weft.solver.placement.chain.constructions.coarse_search import CoarseSearch
from weft.solver.placement.chain.constructions.packing import Packing
from weft.solver.placement.chain.constructions.random_slicings import RandomSlicings
from weft.solver.placement.chain.constructions.refinement import Refinement
from weft.solver.placement.chain.constructions.threshold_search import ThresholdSearch
from weft.solver.placement.encoding.least_load import bound_loads, read_stages
from weft.solver.placement.encoding.threshold import Literal, NoTimeLeft, Threshold, Ticks, negated
from weft.solver.placement.encoding.threshold_memory import require_memory
from weft.solver.placement.groups import Division, Groups, nodes_of
from weft.solver.placement.params import PARAMS, PlacementParams
from weft.solver.placement.placement import Placement, meets
from weft.solver.placement.problem import PlacementProblem
from weft.solver.placement.stage_windows import windows_of

#: The techniques for first placements.
FIRST: tuple[type[Placer[ChainBracket]], ...] = (Packing, RandomSlicings)
#: The techniques that then search the whole graph: the first that applies to its size.
WHOLE: tuple[type[Placer[ChainBracket]], ...] = (ThresholdSearch, CoarseSearch)
#: The techniques of every round after that.
ROUND: tuple[type[Placer[ChainBracket]], ...] = (Refinement, ThresholdSearch)


def place(problem: PlacementProblem, *, time_limit: float = 60.0, effort: float | None = None, seed: int = 0,
          workers: int = 1, latency: bool = False,
          on_step: Callable[[Standing], None] = lambda _: None) -> Placement:
    """The placement with the least largest load found within ``time_limit`` seconds, with a proven bound.

    ``latency``: then, among those with that load, the one with the least latency. ``effort`` limits CP-SAT's
    deterministic time, so that a ``seed`` repeats a run exactly (with one worker and a time limit that is not met).
    Ctrl-C returns the best so far. Raises :class:`~weft.solver.placement.refusals.NoPlacement` if it is proven that
    nothing fits, and :class:`~weft.solver.feasibility.infeasible.NoneFound` if nothing was found.
    """
    budget = Budget(seconds=time_limit, deterministic=effort, seed=seed, workers=workers)
    return place_within(problem, budget, latency=latency, on_step=on_step)


def place_within(problem: PlacementProblem, budget: Budget, *, latency: bool = False,
                 on_step: Callable[[Standing], None] = lambda _: None, params: PlacementParams = PARAMS,
                 without: Container[str] = ()) -> Placement:
    """:func:`place` within ``budget``, which afterwards states its use and whether Ctrl-C came. ``without``: names of
    techniques to omit, and of parts of the encoding
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
        bracket.details["coarsening"] = None  # however it was found, it is optimal
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
    # 2. A search of the whole graph, or of a coarse one if it is too large.
    for technique in applying(WHOLE, bracket, bracket.without):
        if bracket.run(technique, params.first_shares.get(technique.name, params.usual_share)):
            break
    # 3. Rounds with more and more of the time, until one has no result.
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
    """The least latency within the largest load found; returns a bound on it."""
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


def least_latency(groups: Groups, budget: Budget, limit: float, known: float) -> tuple[Division | None, float]:
    """Stages with no load above ``limit`` and a latency below ``known``, or ``None``; and a lower bound on the latency
    of all placements with no load above ``limit``.

    Adds to the threshold encoding one Boolean follows[s, t] for each two stages and the times at which stages end.
    """
    stages = min(groups.problem.devices, groups.count)
    ticks = Ticks.of(groups, limit)
    try:
        threshold = Threshold(groups, stages, windows_of(groups, stages, limit), ticks, budget)
        model = threshold.model
        most = ticks.up(known)
        loads = [model.new_int_var(0, ticks.up(limit), f"load[{s}]") for s in range(stages)]
        for stage, load in enumerate(loads):
            for kind, on in enumerate(threshold.kind[stage]):
                if on is not False:
                    threshold.at_most(threshold.load_terms(stage, kind), load, on)
        bound_loads(threshold, ticks.up(limit))
        require_memory(threshold)
        ends = [model.new_int_var(0, most, f"end[{s}]") for s in range(stages)]
        latency = model.new_int_var(0, most, "latency")
        for stage, (load, end) in enumerate(zip(loads, ends, strict=True)):
            model.add(end >= load)
            model.add(latency >= end)
            for earlier in range(stage):
                follows = _follows(threshold, earlier, stage)
                if follows is not False:
                    model.add(end >= ends[earlier] + load).only_enforce_if(follows)
        _path_row(threshold, latency)
    except NoTimeLeft:
        return None, 0.0
    model.minimize(latency)
    outcome = run(model, budget)
    if outcome.infeasible:
        return None, known
    bound = ticks.time(outcome.solver.best_objective_bound)
    return (read_stages(threshold, outcome) if outcome.found else None), bound


def _follows(threshold: Threshold, earlier: int, later: int) -> Literal:
    """Whether some group in ``later`` comes directly after one in ``earlier``."""
    follows: cp_model.IntVar | None = None
    for a, b in threshold.groups.order:
        here, there = threshold.inside(a, earlier), threshold.inside(b, later)
        if here is False or there is False:
            continue
        if follows is None:
            follows = threshold.model.new_bool_var(f"follows[{later},{earlier}]")
        threshold.clause(follows, negated(here), negated(there))
    return False if follows is None else follows


def _path_row(threshold: Threshold, latency: cp_model.IntVar) -> None:
    """No placement is faster than the longest path of work, whose groups are in stages that follow each other."""
    groups = threshold.groups
    ends = [0] * groups.count
    before: list[list[int]] = [[] for _ in range(groups.count)]
    for a, b in groups.order:
        before[b].append(a)
    for group in range(groups.count):
        earliest = max((ends[a] for a in before[group]), default=0)
        ends[group] = earliest + threshold.ticks.down(float(groups.least[group]))
    threshold.model.add(latency >= max(ends))
