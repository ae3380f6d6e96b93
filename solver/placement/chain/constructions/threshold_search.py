"""The threshold encoding on the graph itself: a better placement, and the bound that proves the best.

Why no division fits although each operator and the total would: the least memory that must be added.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import ClassVar

from weft.solver.cpsat.budget import Budget
from weft.solver.cpsat.solve import run
from weft.solver.placement.bracket import Placer
from weft.solver.placement.chain.chain_bracket import ChainBracket
from weft.solver.placement.encoding.least_load import least_bottleneck, read_stages
from weft.solver.placement.encoding.threshold import Threshold, Ticks
from weft.solver.placement.encoding.threshold_memory import excess_scale, require_memory
from weft.solver.placement.groups import Division, Groups
from weft.solver.placement.reductions.cutoff import keep_dear_nets_whole, without_slow_kinds
from weft.solver.placement.reductions.interchangeable import order_twins
from weft.solver.placement.refusals import NoPlacement, amount_text, largest_of, operator_text
from weft.solver.placement.stage_windows import windows_of


class ThresholdSearch(Placer[ChainBracket]):
    """For graphs whose cutoff leaves few threshold variables; for any, once a round has begun and nothing is found.
    Raises :class:`~weft.solver.placement.refusals.NoPlacement` if it is proven that nothing fits."""

    name: ClassVar[str] = "threshold search"

    def improve(self, bracket: ChainBracket, share: float) -> bool:
        groups, start = _reduced(bracket)
        stages = min(bracket.problem.devices, groups.count)
        cutoff = start.value if start is not None and "windows" not in bracket.without else float("inf")
        of_any_size = bracket.rounds > 0 and bracket.best is None
        if not of_any_size and windows_of(groups, stages, cutoff).freedom > bracket.params.whole_variables:
            return False
        bracket.say("exact search")
        bracket.details["searched"] = groups.count
        with bracket.part(share) as part:
            found = least_bottleneck(groups, part, start, bracket.bound, without=bracket.without)
        if found.infeasible and bracket.best is None:
            raise NoPlacement(sentence_for(groups, bracket.budget))
        bracket.raise_bound(found.bound)
        bracket.offer_sure(groups, found.stages)
        return True


def _reduced(bracket: ChainBracket) -> tuple[Groups, Division | None]:
    """The graph with all reductions exact below the best placement's largest load, and that placement in its terms."""
    groups, start = bracket.groups, bracket.start(bracket.groups)
    if start is None or "cutoff" in bracket.without:
        return groups, start
    ordered = order_twins(keep_dear_nets_whole(without_slow_kinds(groups, start.value), start.value))
    regrouped = bracket.start(ordered)
    if regrouped is not None and regrouped.value <= start.value * (1 + 1e-9):
        return ordered, regrouped
    return groups, start


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
    """The least memory that every limited device lacks, and stages that fit with it; ``None`` if not found in time.
    """
    stages = min(groups.problem.devices, groups.count)
    threshold = Threshold(groups, stages, windows_of(groups, stages, float("inf")), Ticks.of(groups, float("inf")))
    scale = excess_scale(threshold)
    most = math.ceil(Fraction(groups.memory(range(groups.count), groups.problem.in_flight(stages))) * scale)
    excess = threshold.model.new_int_var(0, most, "excess")
    require_memory(threshold, excess)
    threshold.model.minimize(excess)
    outcome = run(threshold.model, budget)
    if not outcome.found:
        return None
    missing = math.ceil(outcome.solver.objective_value) / scale
    return float(missing), read_stages(threshold, outcome)
