"""The second goal: among placements whose largest load stays within a limit, the least latency.

Latency is what one micro-batch takes if a stage starts when all stages it follows have ended
(:func:`weft.solver.placement.judge.latency_of`): branches in stages of their own overlap.
"""

from __future__ import annotations

from weft.solver.cpsat.budget import Budget
from weft.solver.cpsat.solve import run
from weft.solver.late import cp_model
from weft.solver.placement.division import Division
from weft.solver.placement.encoding.least_load import bound_loads, read_stages
from weft.solver.placement.encoding.threshold import Literal, Threshold, Ticks, TooLate, negated
from weft.solver.placement.encoding.threshold_memory import require_memory
from weft.solver.placement.groups import Groups
from weft.solver.placement.stage_windows import windows_of

__all__ = ["least_latency"]


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
    except TooLate:
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
