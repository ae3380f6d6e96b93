"""Minimising the largest load, then the latency, in the threshold encoding."""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass

from weft.solver.cpsat.budget import Budget
from weft.solver.cpsat.solve import Outcome, run
from weft.solver.late import cp_model
from weft.solver.placement.encoding.threshold import Literal, NoTimeLeft, Threshold, Ticks, everything
from weft.solver.placement.encoding.threshold_memory import require_memory
from weft.solver.placement.groups import Division, Groups, largest_load
from weft.solver.placement.stage_windows import Windows, capacity_of, windows_of

#: Capacities of several kinds are fractions; rows use this many parts of them, rounded up.
_PARTS = 1000


@dataclass(frozen=True)
class SolvedEncoding:
    """``stages``: those found below the cutoff, or ``None``. ``bound`` on the objective. ``infeasible``: nothing fits
    at all (only without a cutoff)."""

    stages: Division | None
    bound: float
    proven: bool
    infeasible: bool


def least_bottleneck(groups: Groups, budget: Budget, start: Division | None, least: float, *,
                     windows: Windows | None = None, memory: Callable[[Threshold], None] | None = None,
                     without: Container[str] = (), deterministic: float = float("inf")) -> SolvedEncoding:
    """A placement that is better than ``start`` and whose largest load is as small as possible.

    ``least`` is a known lower bound. With ``windows`` groups stay inside them, and the bound is for such placements
    only. ``memory`` adds the memory of stages, in place of a row of stages (:func:`.require_memory`). ``without``:
    parts of the encoding to omit, ``cutoff``, ``windows`` or ``total``; all keep the optimum.
    """
    stages = min(groups.problem.devices, groups.count)
    cut = start if "cutoff" not in without else None
    cutoff = float("inf") if cut is None else cut.value
    ticks = Ticks.of(groups, cutoff)
    # One tick better than what is known: loads of both are rounded in the same way.
    top = ticks.up(everything(groups)) if cut is None else load_in_ticks(groups, cut, ticks) - 1
    if windows is None:
        windows = windows_of(groups, stages, cutoff if "windows" not in without else float("inf"))
    if not windows.possible or top < 0:
        return SolvedEncoding(None, cutoff, True, cut is None)
    try:
        threshold = Threshold(groups, stages, windows, ticks, budget)
        if memory is not None:
            memory(threshold)
        bottleneck = threshold.model.new_int_var(max(0, min(ticks.down(least), top)), top, "bottleneck")
        bound_loads(threshold, bottleneck)
        if memory is None:
            require_memory(threshold)
            if "total" not in without:
                _total_row(threshold, bottleneck)
    except NoTimeLeft:
        return SolvedEncoding(None, least, False, False)
    threshold.model.minimize(bottleneck)
    outcome = run(threshold.model, budget, deterministic=deterministic)
    if outcome.infeasible:
        return SolvedEncoding(None, max(least, ticks.time(top + 1)), True, cut is None)
    bound = max(least, ticks.time(outcome.solver.best_objective_bound))
    return SolvedEncoding(read_stages(threshold, outcome) if outcome.found else None, bound, outcome.optimal, False)


def bound_loads(threshold: Threshold, bottleneck: cp_model.LinearExprT) -> None:
    """No stage's load exceeds ``bottleneck``."""
    for stage in range(threshold.stages):
        for kind, on in enumerate(threshold.kind[stage]):
            if on is not False:
                threshold.at_most(threshold.load_terms(stage, kind), bottleneck, on)


def _total_row(threshold: Threshold, bottleneck: cp_model.IntVar) -> None:
    """All work fits all devices. If devices are alike the loads' sum implies it, but if they differ no linear
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
    """The largest load of ``division`` in the rows: every cost rounded down by itself."""
    stage_of = {group: index for index, (_, inside) in enumerate(division.stages) for group in inside}
    loads = [sum(ticks.down(float(groups.times[group, kind])) for group in inside) for kind, inside in division.stages]
    for net in groups.nets:
        touched = {stage_of[group] for group in net.groups}
        if len(touched) > 1:
            for stage in touched:
                factor = groups.problem.kinds[division.stages[stage][0]].transfer_factor
                loads[stage] += ticks.down(net.cost * factor)
    return max(loads)
