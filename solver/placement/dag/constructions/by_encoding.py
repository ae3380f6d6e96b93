"""Both goals in the threshold encoding, one after the other: for graphs that are too wide for their levels.

A chain of stages with one micro-batch in flight needs no more memory than the same stages as a graph: its least load is
a bound, and no graph fits if no such chain does. If some graph keeps that load within the memory that its depths
require, the shallowest of these graphs is the answer. If none does, the least load is searched for with memory by
depth; the limit is then above the load found.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Self

from weft.solver.feasibility.infeasible import NoneFound
from weft.solver.placement.chain.place import place_within
from weft.solver.placement.dag.depth_encoding import least_bottleneck_by_depth, least_depth
from weft.solver.placement.dag.graph_bracket import IMPOSSIBLE, GraphBracket
from weft.solver.placement.groups import divided, parts_of
from weft.solver.placement.placement import Placement, meets
from weft.solver.placement.problem import PlacementProblem
from weft.solver.placement.refusals import NoPlacement


class ByEncoding:
    """For stages on one device each. Raises :class:`~weft.solver.placement.refusals.NoPlacement` if it is proven that
    nothing fits."""

    name: ClassVar[str] = "encoding"

    @classmethod
    def of(cls, bracket: GraphBracket) -> Self | None:
        return None if bracket.problem.degrees else cls()

    def improve(self, bracket: GraphBracket, share: float) -> bool:
        bracket.by = self.name
        relaxed = _chain(bracket, dataclasses.replace(bracket.problem, micro_batches=1), share)
        bracket.raise_bound(relaxed.bound)
        if (bracket.offer(bracket.whole, divided(bracket.whole, parts_of(relaxed.stages)))
                or meets(bracket.least, relaxed.objective)):
            bracket.settle()
            _shallower(bracket)
        elif not bracket.budget.spent:
            _with_depth(bracket, relaxed.objective)
        return True


def _chain(bracket: GraphBracket, problem: PlacementProblem, share: float) -> Placement:
    with bracket.part(share) as part:
        return place_within(problem, part, on_step=bracket.on_step)


def _with_depth(bracket: GraphBracket, least: float) -> None:
    """No graph with the load ``least`` is known that fits: is there one, or what is the least load of those that do?"""
    bracket.say("depth")
    found = least_depth(bracket.groups, bracket.budget, least)
    if not bracket.offer(bracket.groups, found.stages):
        _least_load(bracket)
        bracket.settle()
        _shallower(bracket)
        return
    bracket.settle()
    bracket.depth_bound = int(found.bound)
    if bracket.slack:
        bracket.depth_bound = 1
        _shallower(bracket)


def _shallower(bracket: GraphBracket) -> None:
    """The shallowest graph within the limit."""
    if bracket.budget.spent:
        return
    bracket.say("depth")
    assert bracket.limit is not None
    found = least_depth(bracket.groups, bracket.budget, bracket.limit, bracket.depth)
    bracket.depth_bound = int(found.bound)
    bracket.offer_sure(bracket.groups, found.stages)


def _least_load(bracket: GraphBracket) -> None:
    """The least largest load if memory binds, from the best chain that fits."""
    try:
        chain = _chain(bracket, bracket.problem, bracket.params.chain_share)
        bracket.offer(bracket.whole, divided(bracket.whole, parts_of(chain.stages)))
    except (NoPlacement, NoneFound):
        pass
    if bracket.over:
        return
    bracket.say("least load with memory by depth")
    with bracket.part(bracket.params.depth_share) as part:
        found = least_bottleneck_by_depth(bracket.groups, part, bracket.start(bracket.groups), bracket.bound)
    if found.infeasible and bracket.best is None:
        raise NoPlacement(IMPOSSIBLE)
    bracket.raise_bound(found.bound)
    bracket.offer_sure(bracket.groups, found.stages)
    if bracket.best is None:
        bracket.give_up()
