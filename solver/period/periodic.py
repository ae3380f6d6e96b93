"""Periodic schedules with one micro-batch per period: their structure, and the least period that it allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TypeAlias, TypeVar

from weft.solver.pools import PooledOrders
from weft.solver.relations.difference_constraints import Constraint, longest_paths_or_cycle, ratio
from weft.solver.relations.fixed_order import Op
from weft.solver.ticks import TickProblem
from weft.solver.timing import Orders

_T = TypeVar("_T")


@dataclass(frozen=True)
class Periodic:
    """In its n-th run block i starts at ``starts[i] + n * period`` ticks; the least start is in [0, period).

    Every run is of one micro-batch; or the instance contains every block ``micro_batches_per_period`` times, a copy for
    each of them (:mod:`weft.solver.period.reductions.multi_batch`).
    """

    instance: TickProblem
    period: Fraction
    starts: tuple[Fraction, ...]
    micro_batches_per_period: int = 1

    @property
    def rate(self) -> Fraction:
        """Ticks per micro-batch."""
        return self.period / self.micro_batches_per_period

    def operation(self, block: int, run: int) -> tuple[int, int]:
        """The block and the micro-batch that ``block`` (or copy) stands for in run number ``run``."""
        copy, original = divmod(block, len(self.instance.durations) // self.micro_batches_per_period)
        return original, run * self.micro_batches_per_period + copy

    def shift(self, block: int) -> int:
        """k: run n of the block is in period n + k."""
        return self.starts[block] // self.period

    def offset(self, block: int) -> Fraction:
        """s: the position in the period at which the block starts, in [0, period)."""
        return self.starts[block] % self.period

    @property
    def depth(self) -> int:
        """The largest shift: after that many periods of warm-up the steady state is reached."""
        return max(self.shift(i) for i in self.instance.blocks)

    @property
    def rings(self) -> Rings:
        """The rings of the devices."""
        return [ring_of(self.instance, device, self.period, self.starts)
                for device in range(len(self.instance.capacity))]

    @property
    def latency(self) -> Fraction:
        """Ticks from a micro-batch's first start to its last end."""
        return max(start + duration for start, duration in zip(self.starts, self.instance.durations, strict=True)) \
            - min(self.starts)


#: Per device, its blocks in the order of one period, each with the index of the micro-batch it runs there.
Rings: TypeAlias = Sequence[Sequence[tuple[int, int]]]


def retime(instance: TickProblem, period: int | Fraction, starts: Sequence[int | Fraction],
           copies: int = 1) -> Periodic:
    """The same order on every device and link, and the same waits for the memory of mixed pools, at the least period
    they allow."""
    rings = [ring_of(instance, device, period, starts) for device in range(len(instance.capacity))]
    found = in_order(instance, rings, copies, memory_waits(instance, period, starts))
    if found is None:
        raise AssertionError("the order of a periodic schedule waits for itself")
    return found


def ring_of(instance: TickProblem, device: int, period: int | Fraction,
            starts: Sequence[int | Fraction] | Mapping[int, int]) -> list[tuple[int, int]]:
    """One of :data:`Rings`: the order of ``device`` in a period, by the absolute starts of its blocks.

    A block without duration (:mod:`weft.solver.period.reductions.barriers`) runs before the one that starts at the same
    moment.
    """
    ordered = sorted(instance.blocks_on[device], key=lambda i: (starts[i] % period, instance.durations[i] > 0))
    return [(i, -int(starts[i] // period)) for i in ordered]


def memory_waits(instance: TickProblem, period: int | Fraction,
                 starts: Sequence[int | Fraction]) -> list[Constraint]:
    """The waits for memory in mixed pools (:mod:`weft.solver.pools`) at these starts: each taker waits for the last
    instance of each giver that has ended by its start, if they share no engine."""
    waits = []
    devices = [set(block.devices) for block in instance.problem.blocks]
    for pool in instance.mixed_pools:
        for taker in (i for i, amount in pool.take.items() if amount):
            for giver in (i for i in pool.take if pool.given(i) and not devices[i] & devices[taker]):
                ended = (starts[taker] - starts[giver] - instance.durations[giver]) // period
                waits.append(Constraint(giver, taker, instance.durations[giver], -int(ended)))
    return waits


def fits_pools(found: Periodic) -> bool:
    """Whether every mixed pool has room for the levels of a steady state; true if no pool is mixed."""
    instance, period = found.instance, found.period
    for pool in instance.mixed_pools:
        for taker in (i for i, amount in pool.take.items() if amount):
            now = found.starts[taker]
            level = sum(pool.take[i] * ((now - found.starts[i]) // period + 1)
                        - pool.given(i) * ((now - found.starts[i] - instance.durations[i]) // period + 1)
                        for i in pool.take)
            if level > pool.capacity:
                return False
    return True


def in_order(instance: TickProblem, rings: Rings, copies: int = 1, waits: Sequence[Constraint] = ()) -> Periodic | None:
    """The periodic schedule that repeats ``rings``, at the least period it allows.

    The order determines, for each pair of neighbours on a device, which instance follows which; together with the
    dependencies these are difference constraints whose least feasible period is the maximum over cycles of weight /
    height (Hanen and Munier, "Cyclic scheduling on parallel processors"). It is found exactly by raising the period to
    the ratio of a violated cycle until none is left. Memory depends on the order alone, except for mixed pools, which
    ``waits`` may serve: every offer is checked against them (:func:`fits_pools`). ``None`` if the order waits for
    itself at every period.
    """
    nodes, edges = _structure(instance, rings)
    edges += waits
    least = Fraction(instance.heaviest_load)
    while True:
        potential, cycle = longest_paths_or_cycle(nodes, edges, least)
        if cycle is None:
            break
        if sum(edge.height for edge in cycle) <= 0:
            return None
        least = ratio(cycle)
    blocks = potential[:len(instance.durations)]
    shift = min(blocks) // least * least
    return Periodic(instance, least, tuple(start - shift for start in blocks), copies)


def coarser(fine: Periodic, instance: TickProblem, factor: int, copies: int) -> Periodic:
    """A schedule of ``instance.refined(factor)``, converted to one of ``instance``."""
    return Periodic(instance, fine.period / factor, tuple(start / factor for start in fine.starts), copies)


def repeat(found: Periodic, micro_batches: int) -> Orders:
    """Device orders of ``found`` repeated for micro-batches 0..N-1 and no others, with its waits if pools are mixed."""
    rows = [[op for op, _ in row] for row in rows_by_period(found, micro_batches)]
    instance = found.instance
    if not instance.mixed_pools:
        return rows
    def runs(block: int) -> int:
        """The number of runs of the block."""
        return -((found.operation(block, 0)[1] - micro_batches) // found.micro_batches_per_period)

    # A wait for a run of the giver beyond the last becomes one for the last.
    waits = [(found.operation(wait.source, min(run - wait.height, runs(wait.source) - 1)),
              found.operation(wait.target, run))
             for wait in memory_waits(instance, found.period, found.starts) if runs(wait.source)
             for run in range(max(0, wait.height), runs(wait.target))]
    return PooledOrders(rows, waits)


def rows_by_period(found: Periodic, micro_batches: int) -> list[list[tuple[Op, int]]]:
    """Like :func:`repeat`, each operation with the index of the period it runs in."""
    shifts = [found.shift(i) for i in found.instance.blocks]
    periods = -(-micro_batches // found.micro_batches_per_period) + found.depth
    rows = []
    for on in found.instance.blocks_on:
        ring = sorted(on, key=found.offset)
        row = [(found.operation(i, period - shifts[i]), period) for period in range(periods) for i in ring
               if period >= shifts[i]]
        rows.append([(op, period) for op, period in row if op[1] < micro_batches])
    return rows


def _structure(instance: TickProblem, rings: Rings) -> tuple[int, list[Constraint]]:
    durations = instance.durations
    edges = []
    for ring in rings:
        for (i, first), (j, second) in _neighbours(ring):
            edges.append(Constraint(i, j, durations[i], second - first))
    nodes = len(durations)
    transfers: dict[int, list[tuple[int, int]]] = {}
    for number, arc in enumerate(instance.arcs):
        if arc.link is None:
            edges.append(Constraint(arc.source, arc.target, durations[arc.source] + arc.lag, arc.distance))
            continue
        edges.append(Constraint(arc.source, nodes, durations[arc.source], 0))
        edges.append(Constraint(nodes, arc.target, arc.lag, arc.distance))
        transfers.setdefault(arc.link, []).append((number, nodes))
        nodes += 1
    for link, carried in transfers.items():
        # Transfers run in the order of their producers on the link's source device.
        ring = rings[instance.problem.links[link].source]
        if not ring:  # free, and so are its transfers
            continue
        runs = {i: (position, micro_batch) for position, (i, micro_batch) in enumerate(ring)}
        queue = sorted(carried, key=lambda entry: (runs[instance.arcs[entry[0]].source][0], entry[0]))
        for (before, m), (after, n) in _neighbours([(entry, runs[instance.arcs[entry[0]].source][1])
                                                    for entry in queue]):
            edges.append(Constraint(before[1], after[1], instance.arcs[before[0]].lag, n - m))
    return nodes, edges


def _neighbours(ring: Sequence[tuple[_T, int]]) -> Iterator[tuple[tuple[_T, int], tuple[_T, int]]]:
    """Pairs of consecutive entries; after the last comes the first, of the next micro-batch."""
    yield from pairwise(ring)
    if ring:
        first, micro_batch = ring[0]
        yield ring[-1], (first, micro_batch + 1)
