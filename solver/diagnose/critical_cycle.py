"""The critical cycle of a schedule's steady state: which loop of waits sets its period.

In the steady state the orders of devices and links and the dependencies are difference constraints between operations
of one period: t_j >= t_i + weight - height x period, where the height is the number of periods by which the instance of
j is later. The period is the largest weight / height over all cycles (Hanen and Munier, "Cyclic scheduling on
parallel processors"). It is found exactly by raising the period to the ratio of a violated cycle until none is left.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from weft.solver.diagnose.critical_path import Levels, Reason
from weft.solver.pools import Op, PooledOrders
from weft.solver.relations.difference_constraints import Constraint, longest_paths_or_cycle, ratio
from weft.solver.schedule import RELATIVE_TOLERANCE, Operation, Schedule
from weft.solver.step.stretch import ends_of_repeats
from weft.solver.ticks import TickProblem


@dataclass(frozen=True, slots=True)
class Wait:
    """One wait of the cycle: ``target`` starts at least ``weight`` (problem's time unit) after ``source``, whose
    instance is ``height`` periods earlier.

    Both are block indices. The reason is ``dependency``, ``link`` (the order of transfers), ``device`` or ``memory``
    (the order on ``device``; see :mod:`weft.solver.diagnose.critical_path`).
    """

    source: int
    target: int
    weight: float
    height: int
    reason: Reason
    device: int | None = None


@dataclass(frozen=True)
class CriticalCycle:
    """``waits`` in order, the last one leading back to the first. ``weight`` over ``height`` is the length of a period,
    in the problem's time unit, which advances ``micro_batches`` micro-batches.

    ``device`` is set if the cycle is only one device's work: it is busy all the time.
    """

    waits: tuple[Wait, ...]
    weight: float
    height: int
    micro_batches: int
    device: int | None = None

    @property
    def period(self) -> float:
        """Time per micro-batch that the cycle enforces."""
        return self.weight / self.height / self.micro_batches


def critical_cycle(schedule: Schedule) -> CriticalCycle | None:
    """The cycle that sets the period of a valid ``schedule``; None if it has no steady state of two periods or more,
    and if lanes share a memory and its order alone would allow a shorter one.

    Of several, one device's whole work comes first: only less work there shortens that period.
    """
    repetend = schedule.repetend
    if repetend is None or repetend.count < 2:
        return None
    graph = _ConstraintGraph(schedule, repetend.micro_batches, repetend.count)
    least, cycle = graph.heaviest()
    while (longer := graph.violated(least)) is not None:
        least, cycle = ratio(longer), longer
    if graph.instance.mixed_pools and schedule.period is not None:
        order = graph.instance.time(least) / repetend.micro_batches
        if order < schedule.period * (1 - RELATIVE_TOLERANCE):
            return None
    weight = float(sum(edge.weight for edge in cycle) * graph.instance.tick)
    waits = tuple(graph.wait(edge) for edge in cycle)
    devices = {wait.device for wait in waits}
    whole = next(iter(devices)) if len(devices) == 1 else None
    return CriticalCycle(waits, weight, sum(edge.height for edge in cycle), repetend.micro_batches, whole)


@dataclass(frozen=True, slots=True)
class _Edge(Constraint):
    reason: Reason
    device: int | None = None


class _ConstraintGraph:
    """The constraints of one period. Nodes: block x residue of the micro-batch, then transfers on links likewise."""

    def __init__(self, schedule: Schedule, step: int, count: int) -> None:
        self.instance = TickProblem.of(schedule.problem)
        self.step = step
        self.levels = Levels(schedule)
        self.edges: list[_Edge] = []
        self._blocks = len(self.instance.durations)
        linked = [number for number, arc in enumerate(self.instance.arcs) if arc.link is not None]
        self._transfer = {number: self._blocks + place for place, number in enumerate(linked)}
        self._carries = {node: number for number, node in self._transfer.items()}
        self.nodes = (self._blocks + len(linked)) * step
        self._rings: list[list[_Edge]] = []
        last: set[Op] = set()  # the last period's operations on each device: those before all of them have run
        for device, row in enumerate(schedule.device_orders):
            length = len(schedule.problem.blocks_on[device]) * step
            if length:
                ends = ends_of_repeats([(o.block, o.micro_batch) for o in row], length, count, step)
                first = ends[-1] - count * length
                self._order_device(device, row[first:first + length + 1])
                last |= {(o.block, o.micro_batch) for o in row[ends[-1] - length:ends[-1]]}
        self._depend()
        self._share(schedule, last)

    def _node(self, what: int, micro_batch: int) -> int:
        return what * self.step + micro_batch % self.step

    def _edge(self, source: tuple[int, int], target: tuple[int, int], weight: int, reason: Reason,
              device: int | None = None) -> _Edge:
        """Add an edge between two instances, each (block or transfer, micro-batch)."""
        return _Edge(self._node(*source), self._node(*target), weight,
                     target[1] // self.step - source[1] // self.step, reason, device)

    def _order_device(self, device: int, row: Sequence[Operation]) -> None:
        """``row`` is one period of the device's operations, and the first of the next."""
        durations = self.instance.durations
        ring = [self._edge((a.block, a.micro_batch), (b.block, b.micro_batch), durations[a.block],
                           "memory" if self._forced(device, a, b) else "device", device) for a, b in pairwise(row)]
        self._rings.append(ring)
        self.edges += ring
        for link, ends in enumerate(self.instance.problem.links):
            if ends.source != device:
                continue
            queue = [(number, o.micro_batch) for o in row[:-1] for number, arc in enumerate(self.instance.arcs)
                     if arc.link == link and arc.source == o.block]
            if not queue:
                continue
            queue.append((queue[0][0], queue[0][1] + self.step))
            ring = [self._edge((self._transfer[a], m), (self._transfer[b], k), self.instance.arcs[a].lag, "link")
                    for (a, m), (b, k) in pairwise(queue)]
            self._rings.append(ring)
            self.edges += ring

    def _forced(self, device: int, earlier: Operation, later: Operation) -> bool:
        """Whether ``later`` needs the memory that ``earlier`` gives back."""
        return self.instance.change[device][earlier.block] < 0 and self.levels.exchange_breaks(earlier, later)

    def _depend(self) -> None:
        durations = self.instance.durations
        for number, arc in enumerate(self.instance.arcs):
            for m in range(self.step):
                source, target = (arc.source, m), (arc.target, m + arc.distance)
                if arc.link is None:
                    self.edges.append(self._edge(source, target, durations[arc.source] + arc.lag, "dependency"))
                    continue
                carried = (self._transfer[number], m)
                self.edges.append(self._edge(source, carried, durations[arc.source], "dependency"))
                self.edges.append(self._edge(carried, target, arc.lag, "dependency"))

    def _share(self, schedule: Schedule, period: Set[Op]) -> None:
        """Add the waits in that period for memory that another engine of a shared one gives back."""
        orders = schedule.orders
        for giver, taker in orders.waits if isinstance(orders, PooledOrders) else ():
            if taker in period:
                owner = schedule.problem.pool_of[schedule.problem.blocks[giver[0]].devices[0]]
                self.edges.append(self._edge(giver, taker, self.instance.durations[giver[0]], "memory", owner))

    def heaviest(self) -> tuple[Fraction, list[_Edge]]:
        """The device or link with the most work in a period: no period is shorter."""
        ring = max(self._rings, key=ratio)
        return ratio(ring), ring

    def violated(self, period: Fraction) -> list[_Edge] | None:
        """A cycle too long for ``period``, if there is one."""
        return longest_paths_or_cycle(self.nodes, self.edges, period)[1]

    def wait(self, edge: _Edge) -> Wait:
        """``edge`` in terms of the problem; a transfer is named by its producer."""
        return Wait(self._block(edge.source), self._block(edge.target), self.instance.time(edge.weight), edge.height,
                    edge.reason, edge.device)

    def _block(self, node: int) -> int:
        what = node // self.step
        return what if what < self._blocks else self.instance.arcs[self._carries[what]].source
