"""The threshold encoding on a coarse graph, refined on the finer ones: for graphs too large to be searched whole."""

from __future__ import annotations

from typing import ClassVar

from weft.solver.placement.bracket import Placer
from weft.solver.placement.chain.chain_bracket import ChainBracket
from weft.solver.placement.chain.constructions.refinement import refine_within
from weft.solver.placement.encoding.least_load import least_bottleneck


class CoarseSearch(Placer[ChainBracket]):
    """Its bound is of no use: see :mod:`weft.solver.placement.reductions.coarsen`."""

    name: ClassVar[str] = "coarse search"

    def improve(self, bracket: ChainBracket, share: float) -> bool:
        coarser, small = bracket.coarser, 2 * bracket.params.coarse_groups
        coarse = next((groups for groups in coarser if groups.count <= small), coarser[-1])
        if coarse.count > small and bracket.best is not None:
            return False  # so many devices that joining groups leaves too many
        bracket.details["coarsening"] = (
            f"heuristic: {bracket.groups.count} groups were joined along heavy edges to {coarse.count}, solved so, and "
            "refined near the cuts; the bound is one for the graph itself")
        bracket.say("coarse search")
        start = bracket.start(coarse)
        with bracket.part(share) as part:
            found = least_bottleneck(coarse, part, start, bracket.bound)
        bracket.offer_sure(coarse, found.stages)
        for groups in reversed(coarser[1: coarser.index(coarse)]):
            refine_within(bracket, groups, share)
        return False
