"""The best times and period for a given order of blocks, the period free: exact, in fractions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from itertools import combinations

from weft.solver.period.periodic import Periodic
from weft.solver.relations.difference_constraints import Constraint, longest_paths_or_cycle
from weft.solver.ticks import TickProblem

__all__ = ["FixedHeights"]


class FixedHeights:
    """What is left to choose once the height of every pair of blocks on one device is fixed
    (:mod:`weft.solver.latency.free_period_model`): starts and the period.

    These are difference constraints, with the latency as one more: at (P, L) either starts satisfy them, or a cycle
    is violated, whose weights make it a half-plane a L + h P >= w of what is possible. Half-planes are gathered until
    the best point (least L, then least P) violates no further one. There are finitely many simple cycles.
    """

    def __init__(self, instance: TickProblem, heights: Mapping[tuple[int, int], int]) -> None:
        self.instance = instance
        blocks = len(instance.durations)
        first, last = blocks, blocks + 1
        self.nodes = blocks + 2
        self._back = Constraint(last, first, 0, 0)  # from the last end to the first start: later by minus the latency
        self.edges = [self._back]
        for i, duration in enumerate(instance.durations):
            self.edges += [Constraint(first, i, 0, 0), Constraint(i, last, duration, 0)]
        for (i, j), q in heights.items():
            self.edges += [Constraint(i, j, instance.durations[i], -q), Constraint(j, i, instance.durations[j], q + 1)]
        carried: dict[int, list[tuple[int, int]]] = {}
        for number, arc in enumerate(instance.arcs):
            if arc.link is None:
                self.edges.append(Constraint(arc.source, arc.target, instance.durations[arc.source] + arc.lag,
                                             arc.distance))
                continue
            transfer, self.nodes = self.nodes, self.nodes + 1
            self.edges += [Constraint(arc.source, transfer, instance.durations[arc.source], 0),
                           Constraint(transfer, arc.target, arc.lag, arc.distance)]
            for other, earlier in carried.setdefault(arc.link, []):
                before = instance.arcs[other]
                pair = (min(before.source, arc.source), max(before.source, arc.source))
                q = 0 if pair[0] == pair[1] else heights[pair] if pair[0] == before.source else -1 - heights[pair]
                self.edges += [Constraint(earlier, transfer, before.lag, -q),
                               Constraint(transfer, earlier, arc.lag, q + 1)]
            carried[arc.link].append((number, transfer))

    def best(self, least: Fraction, most: Fraction) -> Periodic | None:
        """The schedule of least latency, and among those of the least period, with a period from ``least`` to ``most``;
        None if there is none."""
        lines: list[tuple[int, int]] = [(0, 0)]  # (w, h): latency >= w - h P
        while True:
            point = _lowest(lines, least, most)
            if point is None:
                return None
            period, latency = point
            starts, cycle = self._at(period, latency)
            if cycle is None:
                blocks = starts[:len(self.instance.durations)]
                return Periodic(self.instance, period, tuple(start - min(blocks) for start in blocks))
            weight, height = sum(edge.weight for edge in cycle), sum(edge.height for edge in cycle)
            if any(edge is self._back for edge in cycle):
                lines.append((weight, height))
            elif height > 0:
                least = max(least, Fraction(weight, height))
            elif height < 0:
                most = min(most, Fraction(weight, height))
            else:
                return None

    def _at(self, period: Fraction, latency: Fraction) -> tuple[list[Fraction], list[Constraint] | None]:
        """Starts for this period and latency, or a violated cycle."""
        scale = math.lcm(period.denominator, latency.denominator)
        back = -int(latency * scale)
        scaled = [Constraint(edge.source, edge.target, back if edge is self._back else edge.weight * scale, edge.height)
                  for edge in self.edges]
        starts, cycle = longest_paths_or_cycle(self.nodes, scaled, period * scale)
        if cycle is not None:
            originals = {id(fine): edge for fine, edge in zip(scaled, self.edges, strict=True)}
            return [], [originals[id(edge)] for edge in cycle]
        return [start / scale for start in starts], None


def _lowest(lines: list[tuple[int, int]], least: Fraction, most: Fraction) -> tuple[Fraction, Fraction] | None:
    """(P, L) with the least L, then P, above all ``lines`` (w, h), L >= w - h P, for P from ``least`` to ``most``."""
    if least > most:
        return None
    corners = {least, most}
    for (w, h), (v, g) in combinations(lines, 2):
        if h != g:
            corners.add(Fraction(w - v, h - g))
    points = [(max(w - h * period for w, h in lines), period) for period in corners if least <= period <= most]
    latency, period = min(points)
    return period, Fraction(latency)
