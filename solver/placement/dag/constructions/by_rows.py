"""Replicated stages without proof, for graphs too wide for their levels: longer pieces of its paths, and chains; if
none of these fits, any stages that do.

Paths are made of fewer, longer pieces for the levels' program, whose cost grows with the lengths of a graph's paths.

A heuristic: it may lose every optimum. Interchangeable paths stay so.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Self

from weft.solver.placement.dag.graph_bracket import IMPOSSIBLE, GraphBracket
from weft.solver.placement.dag.levels.ideals import TooWide
from weft.solver.placement.dag.levels.level_search import LevelGoal, first_chain, fitting, levels
from weft.solver.placement.groups import Division, Groups, contract
from weft.solver.placement.paths import Paths
from weft.solver.placement.problem import PlacementError
from weft.solver.placement.refusals import NoPlacement


class ByRows:
    """The better of a coarser graph's stages and of the best chains of a few orders. Raises
    :class:`~weft.solver.placement.problem.PlacementError` if devices are of several kinds or the graph is too large,
    and :class:`~weft.solver.placement.refusals.NoPlacement` if it is proven that nothing fits.
    """

    name: ClassVar[str] = "rows"

    @classmethod
    def of(cls, bracket: GraphBracket) -> Self | None:
        return cls() if bracket.problem.degrees else None

    def improve(self, bracket: GraphBracket, share: float) -> bool:
        bracket.by = self.name
        problem, most = bracket.problem, bracket.params.replicated_groups
        if sum(kind.count > 0 for kind in problem.kinds) > 1:
            raise PlacementError("stages are replicated on devices of one kind, and here there are several; leave out "
                                 "the replication or the other kinds")
        if bracket.whole.count > most:
            raise PlacementError(f"{problem.name} has {bracket.whole.count} operators to divide, replicated stages "
                                 f"are made of {most} or fewer; keep layers whole, or do without replication")
        _in_pieces(bracket, share)
        bracket.offer(bracket.whole, first_chain(bracket.whole, bracket.budget, bracket.params))
        if bracket.best is None:
            _any(bracket)
        return True


def _any(bracket: GraphBracket) -> None:
    """Any stages that fit."""
    bracket.say("levels of any load")

    def offer(found: Division, _bound: float) -> None:
        bracket.offer(bracket.whole, found)

    try:
        if not fitting(bracket.whole, bracket.budget, offer, bracket.params):
            raise NoPlacement(IMPOSSIBLE)
    except TooWide:
        pass


def _in_pieces(bracket: GraphBracket, share: float) -> None:
    """By levels, of the graph with every path made of a few pieces, as many as the levels can handle."""
    params, tried = bracket.params, bracket.whole.count
    for pieces in params.pieces:
        groups = shorten_paths(bracket.whole, pieces)
        if groups.count == tried:
            continue
        tried = groups.count
        bracket.say(f"levels of paths of {pieces}")
        goal = LevelGoal(bracket.bound, bracket.slack, max_cuts=params.pieces_cuts)
        try:
            with bracket.part(share) as part:
                found = levels(groups, part, goal, on_found=partial(bracket.offer_with_bound, groups), params=params)
        except TooWide:
            continue
        if bracket.offer(groups, found.stages):
            return


def shorten_paths(groups: Groups, pieces: int) -> Groups:
    """Every path (:mod:`weft.solver.placement.paths`) made of at most ``pieces`` groups of about equal
    work, those next to each other joined."""
    label = list(range(groups.count))
    for path in Paths.of(groups, twins=False).paths:
        total, passed = sum(float(groups.least[g]) for g in path), 0.0
        first: dict[int, int] = {}
        for group in path:
            middle = passed + float(groups.least[group]) / 2
            label[group] = first.setdefault(min(pieces - 1, int(pieces * middle / total)) if total else 0, group)
            passed += float(groups.least[group])
    return contract(groups, label)
