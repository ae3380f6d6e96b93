"""Difference constraints with periods: longest paths for a period, or a cycle that is too long for it.

A constraint start[target] >= start[source] + weight - height x period stands for "the target's instance ``height``
periods later waits for the source". All periods of at least the maximum of weight / height over the cycles are feasible
(Hanen and Munier, "Cyclic scheduling on parallel processors").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from weft.solver.control.clock import checkpoint


@dataclass(frozen=True, slots=True)
class Constraint:
    """start[target] >= start[source] + weight - height x period; nodes are numbers from 0."""

    source: int
    target: int
    weight: int
    height: int


_Edge = TypeVar("_Edge", bound=Constraint)


def ratio(cycle: Sequence[Constraint]) -> Fraction:
    """The least period that ``cycle`` allows. Its heights sum to more than 0."""
    return Fraction(sum(edge.weight for edge in cycle), sum(edge.height for edge in cycle))


def longest_paths_or_cycle(nodes: int, edges: Sequence[_Edge],
                           period: Fraction) -> tuple[list[Fraction], list[_Edge] | None]:
    """Least starts from 0 on that satisfy ``edges`` at ``period``; or, if there are none, a violated cycle in order.

    Bellman-Ford in whole numbers, exact; a violated cycle appears among the predecessors after at most as many rounds
    as there are nodes.
    """
    weights = [edge.weight * period.denominator - edge.height * period.numerator for edge in edges]
    start = [0] * nodes
    came_by: list[_Edge | None] = [None] * nodes
    while True:
        checkpoint()
        changed = None
        for edge, weight in zip(edges, weights, strict=True):
            value = start[edge.source] + weight
            if value > start[edge.target]:
                start[edge.target] = value
                came_by[edge.target] = edge
                changed = edge.target
        if changed is None:
            return [Fraction(value, period.denominator) for value in start], None
        cycle = _cycle_through(came_by, changed)
        if cycle is not None:
            return [], cycle


def _cycle_through(came_by: Sequence[_Edge | None], node: int) -> list[_Edge] | None:
    """The cycle of predecessor edges met when walking back from ``node``, if there is one."""
    seen: dict[int, int] = {}
    walk: list[_Edge] = []
    while node not in seen:
        seen[node] = len(walk)
        edge = came_by[node]
        if edge is None:
            return None
        walk.append(edge)
        node = edge.source
    return walk[seen[node]:][::-1]
