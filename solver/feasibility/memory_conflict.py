"""Which blocks collide in a device's memory, and the number of micro-batches that fit a device's memory.

When block j starts, its ancestors have run and its descendants have not; the others that may have run are any set
closed under dependencies. The least level a device can have at that moment is a minimum cut (Picard, "Maximal closure
of a graph"). If even that leaves no room for j, the blocks resident then collide in *every* order.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction

from weft.solver.late import nx
from weft.solver.problem import Number, Problem
from weft.solver.ticks import TickProblem


@dataclass(frozen=True, slots=True)
class Collision:
    """The contents of a device when block ``at`` (an index) starts: ``(block, amount)`` for each block that has taken
    memory and not yet given it back, ``at`` with the amount it takes, and ``left_behind`` by earlier micro-batches.

    Amounts are in the instance's units. ``forced``: in every order; otherwise in the order that needs least.
    """

    at: int
    held: tuple[tuple[int, int], ...]
    left_behind: int
    forced: bool

    @property
    def total(self) -> int:
        """The sum of its amounts."""
        return sum(amount for _, amount in self.held) + self.left_behind

    def least(self, capacity: int) -> Collision:
        """As few of the blocks as still exceed ``capacity`` together: without any one of them the others fit."""
        spare = self.total
        kept = []
        for block, amount in sorted(self.held, key=lambda entry: (entry[1], entry[0] == self.at)):
            if spare - amount > capacity:
                spare -= amount
            else:
                kept.append(block)
        return Collision(self.at, tuple(entry for entry in self.held if entry[0] in kept), self.left_behind,
                         self.forced)


@dataclass(frozen=True, slots=True)
class Shortage:
    """A device (by index) with too little memory: its ``capacity``, the least that works, and the blocks that collide
    there, all in the problem's memory unit. ``held`` are ``(block, amount)``; see :class:`Collision`. Unless ``exact``,
    ``least`` is known to work, but less may."""

    device: int
    capacity: Number
    least: Number
    at: int
    held: tuple[tuple[int, Number], ...]
    left_behind: Number
    forced: bool
    exact: bool = True

    @property
    def missing(self) -> Number:
        """The memory that the device lacks."""
        return self.least - self.capacity


@dataclass(frozen=True, slots=True)
class InFlight:
    """The number of micro-batches that fit the memory of ``device`` at once, each at its peak.

    ``each`` is that amount, ``workspace`` the amount on top once, in the problem's memory unit. ``most`` is None if
    memory sets no limit.
    """

    device: int
    each: Number
    workspace: Number
    most: int | None

    def needed(self, micro_batches: int) -> Number:
        """The memory that ``micro_batches`` at once need."""
        return self.each * micro_batches + self.workspace


def forced_collision(instance: TickProblem, device: int, left_behind: int = 0) -> Collision | None:
    """The worst collision on the device in every order of one micro-batch's blocks; None if it takes no memory.

    Meaningful only if no order gives back more than it has taken so far.
    """
    graph = _dependencies(instance)
    worst: Collision | None = None
    for j in instance.problem.topological_order:
        if instance.take[device].get(j, 0) <= 0:
            continue
        before = _least_before(instance, device, graph, j)
        found = held_together(instance, device, before, j, left_behind, forced=True)
        if worst is None or found.total > worst.total:
            worst = found
    return worst


def held_together(instance: TickProblem, device: int, before: Collection[int], at: int, left_behind: int, *,
                  forced: bool) -> Collision:
    """The contents of the device when ``at`` starts after the blocks ``before``.

    The amount that a block gives back was taken by the nearest blocks before it.
    """
    graph = _dependencies(instance)
    held: dict[int, int] = {}
    for i in instance.problem.topological_order:
        change = instance.change[device].get(i, 0) if i in before else 0
        if change > 0:
            held[i] = change
        elif change < 0:
            ancestors = nx.ancestors(graph, i)
            for taker in sorted(held, key=lambda taker: (taker in ancestors, _place(instance, taker)), reverse=True):
                given = min(held[taker], -change)
                held[taker] -= given
                change += given
    taken = [(i, amount) for i, amount in held.items() if amount]
    return Collision(at, (*taken, (at, instance.take[device][at])), left_behind, forced)


def in_flight(problem: Problem) -> tuple[InFlight, ...]:
    """Per device, the number of micro-batches that fit its memory at once; see :class:`InFlight`."""
    instance = TickProblem.of(problem).in_sequence
    found = []
    for device, capacity in enumerate(instance.capacity):
        level = each = peak = 0
        for i in problem.topological_order:
            if i in instance.take[device]:
                peak = max(peak, level + instance.take[device][i])
                each = max(each, level + max(0, instance.change[device][i]))
                level += instance.change[device][i]
        most = None if capacity is None or each <= 0 else max(0, (capacity - (peak - each)) // each)
        found.append(InFlight(device, in_units(instance, each), in_units(instance, peak - each), most))
    return tuple(found)


def in_units(instance: TickProblem, amount: int | Fraction) -> Number:
    """An amount of the instance in the problem's memory unit."""
    exact = amount * instance.memory_unit
    return int(exact) if exact.denominator == 1 else float(exact)


def _dependencies(instance: TickProblem) -> nx.DiGraph[int]:
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(instance.blocks)
    graph.add_edges_from((arc.source, arc.target) for arc in instance.arcs if arc.distance == 0)
    return graph


def _place(instance: TickProblem, block: int) -> int:
    return instance.problem.topological_order.index(block)


def _least_before(instance: TickProblem, device: int, graph: nx.DiGraph[int], j: int) -> set[int]:
    """The blocks that may have run before j and leave the device's level the least: j's ancestors and more."""
    ancestors = nx.ancestors(graph, j)
    excluded = nx.descendants(graph, j) | ancestors | {j}
    network: nx.DiGraph[int | str] = nx.DiGraph()
    network.add_nodes_from(("source", "sink"))
    for i in instance.blocks:
        if i in excluded:
            continue
        gain = -instance.change[device].get(i, 0)
        if gain > 0:
            network.add_edge("source", i, capacity=gain)
        elif gain < 0:
            network.add_edge(i, "sink", capacity=-gain)
        for before in graph.predecessors(i):
            if before not in excluded:
                network.add_edge(i, before)  # without a capacity: unlimited
    _, (chosen, _) = nx.minimum_cut(network, "source", "sink")
    return ancestors | {i for i in chosen if isinstance(i, int)}


def shortages(instance: TickProblem, excess: dict[int, int], left_behind: dict[int, int],
              order: Sequence[int]) -> tuple[Shortage, ...]:
    """The collisions on each device that lacks ``excess``, if one micro-batch's blocks run in ``order`` at best."""
    found = []
    for device, amount in excess.items():
        capacity = instance.capacity[device] or 0
        left = left_behind.get(device, 0)
        forced = forced_collision(instance, device, left)
        if forced is None or forced.total < capacity + amount:
            level, worst = 0, -1
            for place, i in enumerate(order):
                if i in instance.take[device] and level + instance.take[device][i] > worst:
                    worst = level + instance.take[device][i]
                    forced = held_together(instance, device, order[:place], i, left, forced=False)
                level += instance.change[device].get(i, 0)
        if forced is None:
            raise AssertionError("a device that takes nothing lacks memory")
        least = forced.least(capacity)
        found.append(Shortage(device, instance.problem.devices[device].memory or 0,
                              in_units(instance, capacity + amount), least.at,
                              tuple((block, in_units(instance, taken)) for block, taken in least.held),
                              in_units(instance, least.left_behind), least.forced))
    return tuple(found)
