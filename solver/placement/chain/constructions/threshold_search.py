"""The threshold encoding on the graph itself: a better placement, and the bound that proves the best."""

from __future__ import annotations

from typing import ClassVar, Self

from weft.solver.placement.chain.chain_bracket import ChainBracket
from weft.solver.placement.chain.missing_memory import sentence_for
from weft.solver.placement.division import Division
from weft.solver.placement.encoding.least_load import least_bottleneck
from weft.solver.placement.groups import Groups
from weft.solver.placement.reductions.cutoff import keep_dear_nets_whole, without_slow_kinds
from weft.solver.placement.reductions.interchangeable import order_twins
from weft.solver.placement.refusals import NoPlacement
from weft.solver.placement.stage_windows import windows_of

__all__ = ["ThresholdSearch"]


class ThresholdSearch:
    """For graphs whose cutoff leaves few threshold variables; for any, where a round has begun and nothing is found.
    Raises :class:`~weft.solver.placement.refusals.NoPlacement` where it is proven that nothing fits."""

    name: ClassVar[str] = "threshold search"

    @classmethod
    def of(cls, bracket: ChainBracket) -> Self | None:
        return cls()

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
    """The graph with all that is exact below the best placement's largest load, and that placement in its terms."""
    groups, start = bracket.groups, bracket.start(bracket.groups)
    if start is None or "cutoff" in bracket.without:
        return groups, start
    ordered = order_twins(keep_dear_nets_whole(without_slow_kinds(groups, start.value), start.value))
    regrouped = bracket.start(ordered)
    if regrouped is not None and regrouped.value <= start.value * (1 + 1e-9):
        return ordered, regrouped
    return groups, start
