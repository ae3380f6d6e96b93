"""Why nothing fits: the operator at fault and how much memory is missing."""

from __future__ import annotations

import math
from fractions import Fraction

from weft.solver.cpsat.solve import Budget, run
from weft.solver.feasibility.infeasible import Infeasible
from weft.solver.placement.encoding.least_load import read_stages
from weft.solver.placement.encoding.threshold import Threshold, Ticks
from weft.solver.placement.encoding.threshold_memory import excess_scale, require_memory_with
from weft.solver.placement.groups import Groups, room
from weft.solver.placement.orders.slice_order import Slicing
from weft.solver.placement.windows import windows_of

__all__ = ["NoPlacement", "excess_needed", "refuse_hopeless", "sentence_for"]


class NoPlacement(Infeasible):
    """No placement fits (or none was found in time); the message names an operator and how much memory is missing."""


def refuse_hopeless(groups: Groups) -> None:
    """Raise :class:`NoPlacement` where a group fits no device, or all groups together not all devices."""
    problem = groups.problem
    for group in range(groups.count):
        kinds = [kind for k, kind in enumerate(problem.kinds) if math.isfinite(groups.times[group, k])]
        if not kinds:
            raise NoPlacement(f"{_who(groups, group)} must be on one device, but no kind of device runs all of these "
                              "operators; give times on one kind")
        limits = [kind.memory for kind in kinds]
        held = groups.memory([group], 1)
        if all(limit is not None and held > room(limit) for limit in limits):
            limit, name = max((kind.memory or 0.0, kind.name) for kind in kinds)
            raise NoPlacement(f"{_who(groups, group)} holds {_amount(groups, held)}, a device of kind {name} has "
                              f"{_amount(groups, limit)}: {_amount(groups, held - limit)} are missing")
    there = [kind for kind in problem.kinds if kind.count]
    if any(kind.memory is None for kind in there):
        return
    have = sum(kind.count * (kind.memory or 0.0) for kind in there)
    held = groups.memory(range(groups.count), 1)
    if held > room(have):
        raise NoPlacement(f"the operators hold {_amount(groups, held)} together, all devices have "
                          f"{_amount(groups, have)}: {_amount(groups, held - have)} are missing; the largest is "
                          f"{_who(groups, _largest(groups, range(groups.count)))} with "
                          f"{_amount(groups, groups.memory([_largest(groups, range(groups.count))], 1))}")


def sentence_for(groups: Groups, budget: Budget) -> str:
    """Why no division into stages fits although each group and the total would: the least memory that must be added."""
    found = excess_needed(groups, budget)
    if found is None:
        return "no division of the operators into stages fits the devices' memory"
    missing, slicing = found
    stages = len(slicing.stages)

    def held(index: int) -> float:
        return groups.memory(slicing.stages[index][1], groups.problem.in_flight(stages - index))

    limited = [index for index, (kind, _) in enumerate(slicing.stages)
               if groups.problem.kinds[kind].memory is not None]
    fullest = max(limited, key=lambda index: held(index) - (groups.problem.kinds[slicing.stages[index][0]].memory or 0))
    kind, inside = slicing.stages[fullest]
    return (f"no division of the operators into stages fits: {_amount(groups, missing)} are missing on a device of "
            f"kind {groups.problem.kinds[kind].name} however they are divided; the largest operator in "
            f"the fullest stage is {_who(groups, _largest(groups, inside))}, which holds "
            f"{_amount(groups, groups.memory([_largest(groups, inside)], 1))}")


def excess_needed(groups: Groups, budget: Budget) -> tuple[float, Slicing] | None:
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


def _largest(groups: Groups, among: range | tuple[int, ...]) -> int:
    return max(among, key=lambda group: groups.memory([group], 1))


def _who(groups: Groups, group: int) -> str:
    nodes = groups.problem.nodes
    members = sorted(groups.members[group], key=lambda i: -(nodes[i].resident + nodes[i].per_micro_batch))
    others = len(members) - 1
    return f"operator {nodes[members[0]].name!r}" + (
        f" (with {others} more that must share its device)" if others else "")


def _amount(groups: Groups, memory: float) -> str:
    return f"{memory:,.10g} {groups.problem.memory_unit}"
