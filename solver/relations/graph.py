"""The graph for the bounds: one micro-batch's nodes (blocks, and transfers on links), and which machine runs which."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
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


def without_barriers(instance: TickProblem, barrier_blocks: Collection[int],
                     left: Callable[[int], int] = lambda _: 0, kept: int = 0) -> TickProblem:
    """``instance`` without the time in which one of its barriers runs, but for ``kept`` ticks of each.

    While such a block runs nothing else does. Cut these times out of any schedule: every other block keeps its length,
    all orders stay, and the makespan is shorter by the time cut, the same for every schedule. Only transfers may have
    continued meanwhile: ``left`` returns the rest of one that takes so many ticks. The rest of a delay is 0 if nothing
    is kept and barriers of any number of micro-batches may run during one, as in a whole step; in a steady state
    (:mod:`weft.solver.period.reductions.barriers`), and with what is kept (:func:`contracted`), it is more.
    """
    return replace(
        instance,
        durations=tuple(min(kept, duration) if i in barrier_blocks else duration
                        for i, duration in enumerate(instance.durations)),
        arcs=tuple(replace(arc, lag=left(arc.lag), link=None) for arc in instance.arcs),
    )


@dataclass(frozen=True)
class Contracted:
    """A problem whose barriers take ``kept`` ticks each at most: every schedule of the whole one gives one of
    ``instance`` that is ``cut`` ticks a micro-batch shorter. A bound on that, and the time cut, bounds the whole."""

    instance: TickProblem
    kept: int
    cut: int


def contracted(instance: TickProblem, kept: int) -> Contracted:
    """``instance`` with at most ``kept`` ticks of each barrier; as it is where none takes more.

    Between the end of a block and the start of another one, x ticks later, barriers run from beginning to end or not at
    all. If k of them are longer than ``kept``, x ticks become x - k (longest - kept) or more, and k ``kept`` or more,
    as these follow each other. So of a transfer is left the least over k of the larger of both. Transfers occupy no
    link any more, as those that wait for one may begin during a barrier. With nothing kept barriers hide all transfers
    of the step; with the longest transfer kept each hides one transfer of a chain at most, as work lies between two.
    """
    barrier_blocks = {*barriers(instance)}
    longest = max((instance.durations[i] for i in barrier_blocks), default=0)
    if kept >= longest:
        return Contracted(instance, longest, 0)

    def left(lag: int) -> int:
        few = lag // longest
        return min(max(lag - k * (longest - kept), k * kept) for k in (few, few + 1))

    return Contracted(without_barriers(instance, barrier_blocks, left, kept), kept,
                      sum(max(0, instance.durations[i] - kept) for i in barrier_blocks))


def contractions(instance: TickProblem) -> list[Contracted]:
    """``instance`` with nothing kept of its barriers, or as much as its shortest, mean or longest transfer; and as it
    is, but where there are no transfers: then every makespan without barriers is one with them less ``cut``."""
    lags = [arc.lag for arc in instance.arcs if arc.lag] or [0]
    every = [contracted(instance, kept) for kept in sorted({0, min(lags), sum(lags) // len(lags), max(lags)})]
    return [*(each for each in every if each.cut),
            *([contracted(instance, max(instance.durations))] if max(lags) or not every[0].cut else [])]
