"""Why no division fits although each operator and the total would: the least memory that must be added."""

from __future__ import annotations

import math
from fractions import Fraction

from weft.solver.cpsat.budget import Budget
from weft.solver.cpsat.solve import run
from weft.solver.placement.division import Division
from weft.solver.placement.encoding.least_load import read_stages
from weft.solver.placement.encoding.threshold import Threshold, Ticks
from weft.solver.placement.encoding.threshold_memory import excess_scale, require_memory_with
from weft.solver.placement.groups import Groups
from weft.solver.placement.refusals import amount_text, largest_of, operator_text
from weft.solver.placement.stage_windows import windows_of

__all__ = ["excess_needed", "sentence_for"]


def sentence_for(groups: Groups, budget: Budget) -> str:
    """Why no division into stages fits although each group and the total would: the least memory that must be added."""
    found = excess_needed(groups, budget)
    if found is None:
        return "no division of the operators into stages fits the devices' memory"
    missing, division = found
    stages = len(division.stages)

    def held(index: int) -> float:
        return groups.memory(division.stages[index][1], groups.problem.in_flight(stages - index))

    limited = [index for index, (kind, _) in enumerate(division.stages)
               if groups.problem.kinds[kind].memory is not None]
    kinds = groups.problem.kinds
    fullest = max(limited, key=lambda index: held(index) - (kinds[division.stages[index][0]].memory or 0))
    kind, inside = division.stages[fullest]
    return (f"no division of the operators into stages fits: {amount_text(groups, missing)} are missing on a device of "
            f"kind {groups.problem.kinds[kind].name} however they are divided; the largest operator in "
            f"the fullest stage is {operator_text(groups, largest_of(groups, inside))}, which holds "
            f"{amount_text(groups, groups.memory([largest_of(groups, inside)], 1))}")


def excess_needed(groups: Groups, budget: Budget) -> tuple[float, Division] | None:
    """How much memory every limited device lacks at least, and stages that fit with it; ``None`` if not found in time.
    """
    stages = min(groups.problem.devices, groups.count)
    threshold = Threshold(groups, stages, windows_of(groups, stages, float("inf")), Ticks.of(groups, float("inf")))
    scale = excess_scale(threshold)
    most = math.ceil(Fraction(groups.memory(range(groups.count), groups.problem.in_flight(stages))) * scale)
    excess = threshold.model.new_int_var(0, most, "excess")
    require_memory_with(threshold, excess)
    threshold.model.minimize(excess)
    outcome = run(threshold.model, budget)
    if not outcome.found:
        return None
    missing = math.ceil(outcome.solver.objective_value) / scale
    return float(missing), read_stages(threshold, outcome)
