"""What a search for a chain of stages knows: the best placement so far, judged, and the bound."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

from weft.solver.cpsat.budget import Budget
from weft.solver.placement import judge
from weft.solver.placement.bounds.registry import simple_bound
from weft.solver.placement.bracket import Bracket, Step
from weft.solver.placement.division import Division, divided, nodes_of
from weft.solver.placement.encoding.least_load import EVERYTHING, Options
from weft.solver.placement.groups import Groups
from weft.solver.placement.params import PARAMS, PlacementParams
from weft.solver.placement.placement import Stage, meets
from weft.solver.placement.problem import PlacementProblem
from weft.solver.placement.reductions.coarsen import coarsen
from weft.solver.placement.reductions.fold import fold
from weft.solver.placement.refusals import refuse_infeasible

__all__ = ["ChainBracket"]


class ChainBracket(Bracket):
    """``best`` is the best placement, of the groups before any further reduction; ``bound`` holds for the graph itself;
    ``rounds``: how many rounds of the search have begun. Raises
    :class:`~weft.solver.placement.refusals.NoPlacement` where plainly nothing fits."""

    def __init__(self, problem: PlacementProblem, budget: Budget, options: Options = EVERYTHING,
                 on_step: Callable[[Step], None] = lambda _: None, params: PlacementParams = PARAMS) -> None:
        super().__init__(problem, budget, on_step, params)
        self.options = options
        refuse_infeasible(self.whole)
        self.groups = fold(self.whole)
        self.bound = simple_bound(self.groups)
        self.best: Division | None = None
        self.rounds = 0
        self.details: dict[str, Any] = {
            "operators": len(problem.nodes), "groups": self.whole.count, "folded": self.groups.count,
            "coarsening": None, "slicing": None}

    @property
    def objective(self) -> float:
        return math.inf if self.best is None else self.best.value

    @property
    def over(self) -> bool:
        """Whether the time is over or the best placement meets the bound."""
        return self.budget.spent or (self.best is not None and meets(self.best.value, self.bound))

    @cached_property
    def coarser(self) -> list[Groups]:
        """The graph itself, and coarser and coarser ones of it (a heuristic: see
        :mod:`weft.solver.placement.reductions.coarsen`)."""
        found, params = [self.groups], self.params
        for target in (params.middle_groups, params.coarse_groups, params.coarse_groups // 2):
            if found[-1].count > 1.5 * target:
                found.append(coarsen(found[-1], target, self.problem.devices, params))
        return found

    def is_large(self, groups: Groups) -> bool:
        """Whether cutting an order of these groups in the best way takes long."""
        tables = math.prod(min(kind.count, groups.count) + 1 for kind in self.problem.kinds)
        return (groups.count > 2 * self.params.coarse_groups
                or tables * groups.count**2 > self.params.slicing_entries)

    def offer(self, groups: Groups, found: Division | None) -> None:
        """Take over ``found`` (of ``groups``) if it is better. Raises
        :class:`~weft.solver.placement.judge.InvalidPlacement` where it breaks a rule."""
        if found is None or (self.best is not None and found.value >= self.best.value):
            return
        stages = judge.stages_of(self.problem, nodes_of(groups, found))
        faults = judge.breaches(self.problem, stages)
        if faults:
            raise judge.InvalidPlacement("; ".join(faults))
        self.best = divided(self.whole, [(stage.kind, stage.nodes) for stage in stages])
        self.say("found")

    def start(self, groups: Groups) -> Division | None:
        """The best placement in terms of ``groups``, or ``None`` where it takes one of them apart."""
        return None if self.best is None else divided(groups, nodes_of(self.whole, self.best))

    def judged(self) -> tuple[Stage, ...]:
        """The stages of the best placement with their costs."""
        assert self.best is not None
        return judge.stages_of(self.problem, nodes_of(self.whole, self.best))
