"""The state of a search for a graph of stages: the best stages so far, judged with memory by depth, and both bounds."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import ClassVar

from weft.solver.cpsat.budget import Budget
from weft.solver.placement.bracket import LoadBracket, Standing, simple_bound
from weft.solver.placement.dag.stage_dag import stages_by_depth
from weft.solver.placement.groups import Division, Groups, parts_of
from weft.solver.placement.params import PARAMS, PlacementParams
from weft.solver.placement.placement import PlacedStage, meets
from weft.solver.placement.problem import PlacementProblem
from weft.solver.placement.reductions.interchangeable import order_branches, order_twins
from weft.solver.placement.refusals import refuse_infeasible

#: The message if it is proven that nothing fits.
IMPOSSIBLE = ("no graph of stages fits the devices' memory; give more memory or more devices, or a smaller "
              "micro-batch")


class GraphBracket(LoadBracket):
    """``best`` are the best stages so far: with the least largest load until :meth:`settle` fixes that, and from then
    on the shallowest within the limit, which is ``slack`` above it. ``bound`` and ``depth_bound``: the proven bounds.
    ``by``: the technique that found the answer; ``steps``: of the levels' program."""

    what: ClassVar[str] = "graph of stages"

    def __init__(self, problem: PlacementProblem, budget: Budget, slack: float,
                 on_step: Callable[[Standing], None] = lambda _: None, params: PlacementParams = PARAMS,
                 without: Container[str] = ()) -> None:
        super().__init__(problem, budget, on_step, params, without)
        self.slack = slack
        self.bound = simple_bound(self.whole)
        self.limit: float | None = None
        self.depth_bound = 1
        self.steps = 0
        self.by = "levels"

    @staticmethod
    def reduced(groups: Groups) -> Groups:
        if groups.problem.degrees:  # what does not fit one device may fit several
            return groups
        refuse_infeasible(groups)
        return order_branches(order_twins(groups))

    def stages_of(self, parts: Sequence[tuple[int, Sequence[int]]], devices: Sequence[int]) -> tuple[PlacedStage, ...]:
        return stages_by_depth(self.problem, parts, devices)[0]

    @property
    def over(self) -> bool:
        """Whether the time is over; until something is found, only Ctrl-C ends a search."""
        return self.budget.spent and (self.best is not None or self.budget.interrupted)

    @property
    def depth(self) -> int:
        """The depth of the best stages."""
        assert self.best is not None
        return self._depth_of(self.best)

    def _depth_of(self, stages: Sequence[PlacedStage]) -> int:
        return max(stages_by_depth(self.problem, parts_of(stages), [stage.devices for stage in stages])[2])

    def is_better(self, stages: tuple[PlacedStage, ...]) -> bool:
        load, known = max(stage.load for stage in stages), self.objective
        if self.limit is None or not meets(known, self.limit):
            return load < known
        return meets(load, self.limit) and (self._depth_of(stages), load) < (self.depth, known)

    def offer_with_bound(self, groups: Groups, found: Division, bound: float) -> None:
        """:meth:`offer` of stages found on the way, with a bound, which is one for the graph only if the groups are."""
        self.offer(groups, found)
        if groups is self.whole:
            self.raise_bound(min(bound, self.least))

    def settle(self) -> None:
        """Fix the least largest load found: depth is next, within the slack above it."""
        self.limit = self.least * (1 + self.slack)
