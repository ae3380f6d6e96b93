"""A pipeline that is a graph: stages that do not follow each other run in parallel, and a stage keeps as many
micro-batches as it is *deep* (Jeon et al., "GraphPipe", ASPLOS 2025).

The problem is the same as for stages in a row (:mod:`weft.solver.placement.problem`), and so are loads. Memory differs:
a stage from which the longest way to the end goes over d stages, itself included, has d micro-batches in flight, at any
position in the row. Here are the stages of a graph with their costs, counted anew from the problem (independently of
the search in :mod:`weft.solver.placement.dag.depth_encoding`), and the result of that search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft.solver.placement import judge
from weft.solver.placement.dag.in_flight import depths
from weft.solver.placement.placement import PlacedStage, Placement
from weft.solver.placement.problem import PlacementProblem


@dataclass(frozen=True)
class GraphPlacement(Placement):
    """Stages, deepest first. ``after``: per stage the stages that directly follow it. ``depths``: per stage its depth.

    ``objective`` is the largest load, ``least`` the least found on the way (less only if ``slack`` was given for a
    shallower graph), ``bound`` a lower bound for all graphs. ``depth_bound``: no graph of stages with a largest load
    within :attr:`limit` is shallower.
    """

    after: tuple[tuple[int, ...], ...] = ()
    depths: tuple[int, ...] = ()
    depth_bound: int = 1
    slack: float = 0.0
    least: float = 0.0

    @property
    def limit(self) -> float:
        """The load up to which graphs were compared by depth: so much above ``least``, which is the least there is
        where it meets the bound."""
        return self.least * (1 + self.slack)

    @property
    def depth(self) -> int:
        """Stages on the longest way through the pipeline."""
        return max(self.depths)

    @property
    def status(self) -> str:
        """"optimal" if both goals are proven: the least largest load, and the depth among graphs with it. (A graph that
        ``slack`` has made slower is not an optimum; :attr:`depth_bound` says whether it is the shallowest.)"""
        return super().status if self.depth <= self.depth_bound else "feasible"

    def to_json(self) -> dict[str, Any]:
        """What a placement in a row says, with the depth, its bound, the limit on loads among which that holds (so much
        ``slack`` above the ``least`` found), and for each stage those that follow it."""
        answer = super().to_json()
        for stage, after, depth in zip(answer["stages"], self.after, self.depths, strict=True):
            stage.update(depth=depth, after=list(after))
        return {**answer, "depth": self.depth, "depth_bound": self.depth_bound, "least": self.least,
                "slack": self.slack, "limit": self.limit}


def following(problem: PlacementProblem, parts: Sequence[tuple[int, Sequence[int]]]) -> tuple[tuple[int, ...], ...]:
    """Per part (kind, nodes) the parts with an operator that must come after one of its own."""
    stage_of = {node: index for index, (_, nodes) in enumerate(parts) for node in nodes}
    after: list[set[int]] = [set() for _ in parts]
    for first, second in problem.order:
        if stage_of[first] != stage_of[second]:
            after[stage_of[first]].add(stage_of[second])
    return tuple(tuple(sorted(stages)) for stages in after)


def stages_by_depth(problem: PlacementProblem, parts: Sequence[tuple[int, Sequence[int]]], devices: Sequence[int] = ()
                    ) -> tuple[tuple[PlacedStage, ...], tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """The stages of ``parts`` (kind, nodes), deepest first, with their costs; what follows each; and their depths.
    ``devices``: on how many each part is (default: one each).

    Raises :class:`~weft.solver.placement.problem.PlacementError` if parts follow each other in a cycle.
    """
    count = [devices[i] if devices else 1 for i, (_, nodes) in enumerate(parts) if nodes]
    parts = [(kind, nodes) for kind, nodes in parts if nodes]
    deep = depths(following(problem, parts))
    ranked = sorted(range(len(parts)), key=lambda i: (-deep[i], min(parts[i][1])))
    parts, count = [parts[i] for i in ranked], [count[i] for i in ranked]
    after = following(problem, parts)
    deep = depths(after)
    found = []
    for stage, depth in zip(judge.stages_of(problem, parts, count), deep, strict=True):
        in_flight = problem.in_flight(depth)
        held = sum(problem.nodes[node].per_micro_batch for node in stage.nodes)
        found.append(replace(stage, in_flight=in_flight, activations=in_flight * held / stage.devices))
    return tuple(found), after, deep
