"""Periodic schedules with one micro-batch per period: their structure, and the least period that structure allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from solver.cycles import longest_paths_or_cycle, ratio
from solver.instance import Instance

__all__ = ["Periodic", "retime"]


@dataclass(frozen=True)
class Periodic:
    """Turn after turn, block i starts at ``starts[i] + turn * period`` ticks; the least start lies in [0, period).

    A turn is one micro-batch; or ``copies`` of them, if the instance holds each block in so many copies
    (:mod:`solver.copies`).
    """

    instance: Instance
    period: Fraction
    starts: tuple[Fraction, ...]
    copies: int = 1

    @property
    def rate(self) -> Fraction:
        """Ticks per micro-batch."""
        return self.period / self.copies

    def operation(self, block: int, turn: int) -> tuple[int, int]:
        """Which block of which micro-batch the block (or copy) stands for in its ``turn``-th run."""
        copy, original = divmod(block, len(self.instance.durations) // self.copies)
        return original, turn * self.copies + copy

    def lag(self, block: int) -> int:
        """k: how many periods after its turn's index the block runs."""
        return self.starts[block] // self.period

    def offset(self, block: int) -> Fraction:
        """s: where in the period the block starts, in [0, period)."""
        return self.starts[block] % self.period

    @property
    def depth(self) -> int:
        """The largest lag: after that many periods of warm-up the steady state is reached."""
        return max(self.lag(i) for i in self.instance.blocks)

    @property
    def latency(self) -> Fraction:
        """Ticks from a micro-batch's first start to its last end."""
        return max(start + duration for start, duration in zip(self.starts, self.instance.durations, strict=True)) \
            - min(self.starts)


@dataclass(frozen=True, slots=True)
class _Edge:
    """start[target] >= start[source] + weight - height * period."""

    source: int
    target: int
    weight: int
    height: int


def retime(instance: Instance, period: int | Fraction, starts: Sequence[int | Fraction], copies: int = 1) -> Periodic:
    """The same order on every device and link, at the least period it allows.

    The order says, for each pair of neighbours on a device, which instance follows which; together with the
    dependencies these are difference constraints whose least feasible period is the maximum over cycles of weight /
    height (Hanen and Munier, "Cyclic scheduling on parallel processors"). It is found exactly by raising the period to
    the ratio of a violated cycle until none is left. Memory depends on the order alone and stays as it was.
    """
    nodes, edges = _structure(instance, Fraction(period), [Fraction(start) for start in starts])
    least = Fraction(instance.heaviest_load)
    while True:
        potential, cycle = longest_paths_or_cycle(nodes, edges, least)
        if cycle is None:
            break
        least = ratio(cycle)
    blocks = potential[:len(instance.durations)]
    shift = min(blocks) // least * least
    return Periodic(instance, least, tuple(start - shift for start in blocks), copies)


def _structure(instance: Instance, period: Fraction, starts: list[Fraction]) -> tuple[int, list[_Edge]]:
    durations = instance.durations
    edges = []
    for on in instance.blocks_on:
        # A block without duration (solver.contraction) runs before the one that starts at the same moment.
        ring = sorted(on, key=lambda i: (starts[i] % period, durations[i] > 0))
        for i, j in pairwise([*ring, *ring[:1]]):
            # i's instance of its micro-batch m runs just before j's of m + height.
            height = starts[i] // period - starts[j] // period + (1 if j == ring[0] else 0)
            edges.append(_Edge(i, j, durations[i], height))
    nodes = len(durations)
    transfers: dict[int, list[tuple[int, int]]] = {}
    for number, arc in enumerate(instance.arcs):
        if arc.link is None:
            edges.append(_Edge(arc.source, arc.target, durations[arc.source] + arc.lag, arc.distance))
            continue
        edges.append(_Edge(arc.source, nodes, durations[arc.source], 0))
        edges.append(_Edge(nodes, arc.target, arc.lag, arc.distance))
        transfers.setdefault(arc.link, []).append((number, nodes))
        nodes += 1
    for carried in transfers.values():
        # Transfers run in the order of their producers on the link's source device.
        queue = sorted(carried, key=lambda entry: (starts[instance.arcs[entry[0]].source] % period, entry[0]))
        for before, after in pairwise([*queue, *queue[:1]]):
            first, second = instance.arcs[before[0]], instance.arcs[after[0]]
            height = starts[first.source] // period - starts[second.source] // period + (1 if after == queue[0] else 0)
            edges.append(_Edge(before[1], after[1], first.lag, height))
    return nodes, edges
