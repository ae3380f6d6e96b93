"""Minimising the largest load, then the latency, in the threshold encoding."""

from __future__ import annotations

import math
from dataclasses import dataclass

from weft.solver.cpsat.budget import Budget
from weft.solver.cpsat.solve import Outcome, run
from weft.solver.late import cp_model
from weft.solver.placement.division import Division, largest_load
from weft.solver.placement.encoding.threshold import Literal, Threshold, Ticks, TooLate
from weft.solver.placement.encoding.threshold_memory import require_memory
from weft.solver.placement.groups import Groups
from weft.solver.placement.stage_windows import Windows, capacity_of, windows_of

__all__ = ["EVERYTHING", "Options", "Solved", "bound_loads", "least_bottleneck", "load_in_ticks", "read_stages"]

#: Capacities of several kinds are fractions; rows take them in so many parts, rounded up.
_PARTS = 1000


@dataclass(frozen=True)
class Options:
    """Parts of the encoding that can be left out, to measure what each is worth. All keep the optimum."""

    cutoff: bool = True
    total: bool = True
    windows: bool = True
    presolve: bool = False


EVERYTHING = Options()


@dataclass(frozen=True)
class Solved:
    """``stages``: what was found below the cutoff, or ``None``. ``bound``: no placement of these groups has a smaller
    largest load. ``infeasible``: nothing fits at all (only where there was no cutoff)."""

    stages: Division | None
    bound: float
    proven: bool
    infeasible: bool
    deterministic: float


def least_bottleneck(groups: Groups, budget: Budget, start: Division | None, least: float, *,
                     windows: Windows | None = None, options: Options = EVERYTHING,
                     deterministic: float = float("inf")) -> Solved:
    """A placement that is better than ``start`` and whose largest load is as small as possible.

    ``least`` is a lower bound that is known. With ``windows`` groups stay inside them, and the bound is for such
    placements only.
    """
    stages = min(groups.problem.devices, groups.count)
    cutoff = start.value if start is not None and options.cutoff else float("inf")
    ticks = Ticks.of(groups, cutoff)
    # One tick better than what is known: loads of both are rounded in the same way.
    top = (load_in_ticks(groups, start, ticks) - 1 if start is not None and options.cutoff else
           ticks.all_work(groups))
    if windows is None:
        windows = windows_of(groups, stages, cutoff if options.windows else float("inf"))
    if not windows.possible or top < 0:
        return Solved(None, cutoff, True, cutoff == float("inf"), 0.0)
    try:
        threshold = Threshold(groups, stages, windows, ticks, budget)
        bottleneck = threshold.model.new_int_var(max(0, min(ticks.down(least), top)), top, "bottleneck")
        bound_loads(threshold, bottleneck)
        require_memory(threshold)
        if options.total:
            _total_row(threshold, bottleneck)
    except TooLate:
        return Solved(None, least, False, False, 0.0)
    threshold.model.minimize(bottleneck)
    outcome = run(threshold.model, budget, presolve=options.presolve, deterministic=deterministic)
    used = float(outcome.solver.response_proto.deterministic_time)
    if outcome.infeasible:
        return Solved(None, max(least, ticks.time(top + 1)), True, cutoff == float("inf"), used)
    bound = max(least, ticks.time(outcome.solver.best_objective_bound))
    found = read_stages(threshold, outcome) if outcome.found else None
    return Solved(found, bound, outcome.optimal, False, used)


def bound_loads(threshold: Threshold, bottleneck: cp_model.LinearExprT) -> None:
    """No stage's load exceeds ``bottleneck``."""
    for stage in range(threshold.stages):
        for kind, on in enumerate(threshold.kind[stage]):
            if on is not False:
                threshold.at_most(threshold.load_terms(stage, kind), bottleneck, on)


def _total_row(threshold: Threshold, bottleneck: cp_model.IntVar) -> None:
    """All work fits all devices. Where devices are alike the loads' sum says so, but where they differ no linear
    combination of the rows does."""
    groups, ticks = threshold.groups, threshold.ticks
    work = sum(ticks.down(float(time)) for time in groups.least)
    share = capacity_of(groups, threshold.stages).shares[-1]
    threshold.model.add(math.ceil(share * _PARTS * (1 + 1e-9)) * bottleneck >= _PARTS * work)


def read_stages(threshold: Threshold, outcome: Outcome) -> Division:
    """The stages of a solution, with the largest load counted from the groups' real costs."""
    def holds(literal: Literal) -> bool:
        return literal if isinstance(literal, bool) else bool(outcome.solver.boolean_value(literal))

    groups = threshold.groups
    found = []
    for stage in range(threshold.stages):
        inside = tuple(group for group in range(groups.count) if holds(threshold.inside(group, stage)))
        if inside:
            kind = next(k for k, on in enumerate(threshold.kind[stage]) if holds(on))
            found.append((kind, inside))
    return Division(largest_load(groups, found), tuple(found))


def load_in_ticks(groups: Groups, division: Division, ticks: Ticks) -> int:
    """The largest load of ``division`` as rows count it: every cost rounded down by itself."""
    stage_of = {group: index for index, (_, inside) in enumerate(division.stages) for group in inside}
    loads = [sum(ticks.down(float(groups.times[group, kind])) for group in inside) for kind, inside in division.stages]
    for net in groups.nets:
        touched = {stage_of[group] for group in net.groups}
        if len(touched) > 1:
            for stage in touched:
                factor = groups.problem.kinds[division.stages[stage][0]].transfer_factor
                loads[stage] += ticks.down(net.cost * factor)
    return max(loads)
