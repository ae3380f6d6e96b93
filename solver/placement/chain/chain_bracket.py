"""The state of a search for a chain of stages: the best placement so far, judged, and the bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

from weft.solver.placement import judge
from weft.solver.placement.bracket import LoadBracket
from weft.solver.placement.groups import Groups, divided, nodes_of
from weft.solver.placement.placement import PlacedStage, meets
from weft.solver.placement.reductions.coarsen import coarsen
from weft.solver.placement.reductions.fold import fold
from weft.solver.placement.refusals import refuse_infeasible


class ChainBracket(LoadBracket):
    """``bound`` is valid for the graph itself; ``rounds``: the number of rounds begun; ``details``: the course of the
    search, for a result's ``solver`` entry."""

    what: ClassVar[str] = "placement"
    rounds = 0

    @cached_property
    def details(self) -> dict[str, Any]:
        return {"operators": len(self.problem.nodes), "groups": self.whole.count, "folded": self.groups.count,
                "coarsening": None, "slicing": None}

    @staticmethod
    def reduced(groups: Groups) -> Groups:
        refuse_infeasible(groups)
        return fold(groups)

    def stages_of(self, parts: Sequence[tuple[int, Sequence[int]]], devices: Sequence[int]) -> tuple[PlacedStage, ...]:
        whole = divided(self.whole, parts)  # operators in the order of their groups: sums do not depend on the way
        return judge.stages_of(self.problem, parts if whole is None else nodes_of(self.whole, whole))

    @property
    def over(self) -> bool:
        """Whether the time is over or the best placement meets the bound."""
        return self.budget.spent or (self.best is not None and meets(self.objective, self.bound))

    @cached_property
    def coarser(self) -> list[Groups]:
        """The graph itself, and ever coarser versions of it (a heuristic: see
        :mod:`weft.solver.placement.reductions.coarsen`)."""
        found, params = [self.groups], self.params
        for target in (params.middle_groups, params.coarse_groups, params.coarse_groups // 2):
            if found[-1].count > 1.5 * target:
                found.append(coarsen(found[-1], target, self.problem.devices, params))
        return found

    def is_large(self, groups: Groups) -> bool:
        """Whether the best cut of an order of these groups takes long to find."""
        tables = math.prod(min(kind.count, groups.count) + 1 for kind in self.problem.kinds)
        return (groups.count > 2 * self.params.coarse_groups
                or tables * groups.count**2 > self.params.slicing_entries)
