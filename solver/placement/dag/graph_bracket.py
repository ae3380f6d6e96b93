"""What a search for a graph of stages knows: the best stages so far, judged with memory by depth, and both bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NoReturn

from weft.solver.cpsat.budget import Budget
from weft.solver.feasibility.infeasible import NoneFound
from weft.solver.placement import judge
from weft.solver.placement.bounds.registry import simple_bound
from weft.solver.placement.bracket import Bracket, Step
from weft.solver.placement.dag.stage_dag import stages_by_depth
from weft.solver.placement.division import Division, nodes_of, parts_of
from weft.solver.placement.groups import Groups
from weft.solver.placement.params import PARAMS, PlacementParams
from weft.solver.placement.placement import Stage, meets
from weft.solver.placement.problem import PlacementProblem
from weft.solver.placement.reductions.interchangeable import order_branches, order_twins
from weft.solver.placement.refusals import refuse_infeasible

__all__ = ["IMPOSSIBLE", "GraphBracket"]

#: Of what is proven to be impossible.
IMPOSSIBLE = ("no graph of stages fits the devices' memory; give more memory or more devices, or a smaller "
              "micro-batch")


class GraphBracket(Bracket):
    """``best`` are the best stages so far: with the least largest load until :meth:`settle` says what that is, and from
    then on the shallowest within the limit, which is ``slack`` above it. ``least`` is the least largest load found,
    ``bound`` and ``depth_bound`` what is proven. ``by``: the technique that the answer is of; ``steps``: of the
    levels' program. Raises :class:`~weft.solver.placement.refusals.NoPlacement` where plainly nothing fits."""

    def __init__(self, problem: PlacementProblem, budget: Budget, slack: float,
                 on_step: Callable[[Step], None] = lambda _: None, params: PlacementParams = PARAMS) -> None:
        super().__init__(problem, budget, on_step, params)
        self.slack = slack
        if not problem.degrees:  # what does not fit one device may fit several
            refuse_infeasible(self.whole)
        self.groups = self.whole if problem.degrees else order_branches(order_twins(self.whole))
        self.bound = simple_bound(self.whole)
        self.best: tuple[Stage, ...] | None = None
        self.least = math.inf
        self.limit: float | None = None
        self.depth_bound = 1
        self.steps = 0
        self.by = "levels"

    @property
    def objective(self) -> float:
        return math.inf if self.best is None else max(stage.load for stage in self.best)

    @property
    def over(self) -> bool:
        """Whether the time is over; as long as nothing is found, only Ctrl-C ends a search."""
        return self.budget.spent and (self.best is not None or self.budget.interrupted)

    @property
    def depth(self) -> int:
        """Of the best stages."""
        assert self.best is not None
        return max(stages_by_depth(self.problem, parts_of(self.best), [stage.devices for stage in self.best])[2])

    def offer(self, groups: Groups, found: Division | None) -> bool:
        """Take over ``found`` (of ``groups``) if it is better; whether there was anything that breaks no rule with
        memory by depth."""
        if found is None:
            return False
        stages, _, depths = stages_by_depth(self.problem, nodes_of(groups, found), found.devices)
        if judge.breaches(self.problem, stages):
            return False
        load = max(stage.load for stage in stages)
        if self.best is None or self._is_better(load, max(depths)):
            self.best = stages
        self.least = min(self.least, load)
        return True

    def _is_better(self, load: float, depth: int) -> bool:
        known = self.objective
        if self.limit is None or not meets(known, self.limit):
            return load < known
        return meets(load, self.limit) and (depth, load) < (self.depth, known)

    def offer_sure(self, groups: Groups, found: Division | None) -> None:
        """:meth:`offer` of what an exact search says is a placement. Raises
        :class:`~weft.solver.placement.judge.InvalidPlacement` where it breaks a rule."""
        if found is not None and not self.offer(groups, found):
            stages, _, _ = stages_by_depth(self.problem, nodes_of(groups, found), found.devices)
            raise judge.InvalidPlacement("; ".join(judge.breaches(self.problem, stages)))

    def offer_with_bound(self, groups: Groups, found: Division, bound: float) -> None:
        """:meth:`offer` of stages found on the way, with a bound, which is one for the graph only if the groups are."""
        self.offer(groups, found)
        if groups is self.whole:
            self.raise_bound(min(bound, self.least))

    def settle(self) -> None:
        """What was found has the least largest load that will be: depth is next, within the slack above that."""
        self.limit = self.least * (1 + self.slack)

    def give_up(self) -> NoReturn:
        """Raise what a search that found nothing says."""
        if self.budget.interrupted:
            raise KeyboardInterrupt
        what = "replicated stages" if self.problem.degrees else "stages"
        raise NoneFound(f"found no graph of {what} that fits the devices' memory in {self.budget.elapsed:.0f} s, and "
                        "no proof that there is none; give more time, more memory or more devices")
