"""The graph for the bounds: one micro-batch's nodes (blocks, and transfers on links), and which machine runs which."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from weft.solver.ticks import Arc, TickProblem

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class RelationGraph:
    """Nodes by number: first the instance's blocks, then the transfers that occupy a link.

    ``machines`` are the devices, then the links: each lists the nodes that it runs one at a time, and each node's
    micro-batches in order. Devices with the same nodes are listed once. ``waits`` occupy no link: the transfers that do
    are nodes.
    """

    durations: tuple[int, ...]
    waits: tuple[Arc, ...]
    machines: tuple[tuple[int, ...], ...]

    @property
    def mirrored(self) -> RelationGraph:
        """The same with time, and the order of micro-batches, running backwards: its heads are this one's tails."""
        return replace(self, waits=tuple(Arc(wait.target, wait.source, wait.lag, wait.distance)
                                         for wait in self.waits))


def graph_of(instance: TickProblem) -> RelationGraph:
    """The nodes of ``instance``.

    A link carries its transfers in the order in which their producers run, so those of one arc in micro-batch order. A
    transfer to a later micro-batch does not take place if there is none; it counts as a delay only.
    """
    durations = list(instance.durations)
    waits = []
    carried: list[list[int]] = [[] for _ in instance.problem.links]
    for arc in instance.arcs:
        if arc.link is None or arc.distance:
            waits.append(Arc(arc.source, arc.target, arc.lag, arc.distance))
            continue
        transfer = len(durations)
        durations.append(arc.lag)
        carried[arc.link].append(transfer)
        waits += [Arc(arc.source, transfer, 0, 0), Arc(transfer, arc.target, 0, 0)]
    machines = dict.fromkeys((*instance.blocks_on, *(tuple(nodes) for nodes in carried)))
    return RelationGraph(tuple(durations), tuple(waits), tuple(machines))


def joined(groups: Iterable[Collection[T]]) -> list[set[T]]:
    """The ``groups``, merged if they have a common member: the components of a graph whose edges they are."""
    part_of: dict[T, set[T]] = {}
    for group in groups:
        touched = {id(part_of[member]): part_of[member] for member in group if member in part_of}.values()
        part = max(touched, key=len, default=set[T]())
        for other in ({*group}, *touched):
            if other is not part:
                part |= other
                part_of.update(dict.fromkeys(other, part))
    return list({id(part): part for part in part_of.values()}.values())


def barriers(instance: TickProblem) -> list[int]:
    """The blocks that run on every device with blocks, barriers; none if there is only one such device."""
    used = {d for d, on in enumerate(instance.blocks_on) if on}
    if len(used) < 2:
        return []
    return [i for i in instance.blocks if used <= set(instance.problem.blocks[i].devices)]


def without_barriers(instance: TickProblem, barrier_blocks: Sequence[int],
                     left: Callable[[int], int] = lambda _: 0) -> TickProblem:
    """``instance`` without the time in which one of its barriers runs: these blocks then take no time.

    While such a block runs nothing else does. Cut these times out of any schedule: every other block keeps its length,
    all orders stay, and the makespan is shorter by the time cut, the same for every schedule. Only transfers may have
    continued meanwhile: ``left`` returns the rest of one that takes so many ticks. The rest is 0 if barriers of any
    number of micro-batches may run during one, as in a whole step; in a steady state
    (:mod:`weft.solver.period.reductions.barriers`) it is more.
    """
    gone = set(barrier_blocks)
    return replace(
        instance,
        durations=tuple(0 if i in gone else duration for i, duration in enumerate(instance.durations)),
        arcs=tuple(replace(arc, lag=left(arc.lag), link=None) for arc in instance.arcs),
    )
