"""Both goals by dynamic programming over levels, to proof: for graphs of a few paths on devices of one kind."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from weft.solver.placement import judge
from weft.solver.placement.bracket import Placer
from weft.solver.placement.dag.graph_bracket import IMPOSSIBLE, GraphBracket
from weft.solver.placement.dag.levels.ideals import TooWide
from weft.solver.placement.dag.levels.level_search import LevelGoal, levels
from weft.solver.placement.refusals import NoPlacement


class ByLevels(Placer[GraphBracket]):
    """:mod:`weft.solver.placement.dag.levels` on the graph itself. Raises
    :class:`~weft.solver.placement.refusals.NoPlacement` if it is proven that nothing fits."""

    name: ClassVar[str] = "levels"

    def improve(self, bracket: GraphBracket, share: float) -> bool:
        groups = bracket.whole
        bracket.say("levels")
        goal = LevelGoal(bracket.bound, bracket.slack, max_cuts=bracket.params.max_cuts)
        try:
            with bracket.part(share) as part:
                found = levels(groups, part, goal, on_found=partial(bracket.offer_with_bound, groups),
                               params=bracket.params)
        except TooWide:
            return False
        bracket.steps = found.steps
        if found.stages is None:
            raise NoPlacement(IMPOSSIBLE)
        bracket.bound, bracket.depth_bound = found.bound, found.depth
        bracket.settle()
        if not bracket.offer(groups, found.stages):
            raise judge.InvalidPlacement("stages that were found level by level break a rule")
        return True
