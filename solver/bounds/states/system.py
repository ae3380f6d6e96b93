"""A problem as the search over states sees it: blocks, their waits, their memory; all devices or some.

*All devices.* The waits are those of the problem, and the precedences on a device
(:mod:`weft.solver.relations.implied_order`). A transfer that occupies a link is a delay: links carry several at once
here, which only makes schedules shorter.

*Some devices.* A schedule of all devices, restricted to some of them, is a schedule of their blocks in which they keep
every distance that chains of waits through the others' blocks imply, and no earlier or later than the heads and tails
of all operations allow. So the least makespan of these blocks, under these waits, heads and tails, bounds the least
makespan of all. Chains through the others are found by eliminating their blocks one after the other: a chain through a
block enters it, goes round it from one micro-batch to later ones, and leaves.

*Outer barriers.* A block on all devices that waits for nothing, takes no memory and is followed without transfers can
run first: cut its time out of any schedule and put it before everything; where no transfer takes time, every other
operation keeps its order, its length and what it waits for, and the makespan stays. Likewise a block that nothing waits
for can run last. So the least makespan is that of the other blocks and the time of these.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from weft.solver.bounds.heads import Times, heads, tails
from weft.solver.control.clock import checkpoint
from weft.solver.late import nx
from weft.solver.relations.graph import barriers, graph_of, without_barriers
from weft.solver.relations.implied_order import Order, implied_order
from weft.solver.relations.turns import RoundTurns, turns_of
from weft.solver.ticks import TickProblem

Ints = npt.NDArray[np.int64]

#: The number of micro-batches back for which chains are followed and precedences by memory are waited for.
_FARTHEST = 8
#: No chain leads there.
_NONE = -(2**50)
#: The most last ends kept per block; the results of earlier ones are assumed to have arrived.
_MOST_ENDS = 4


@dataclass(frozen=True)
class WaitArrays:
    """Arrays with an entry for each wait, in the order of targets: ``target`` of micro-batch m starts ``lag`` ticks or
    more after the end of ``source`` of micro-batch m - ``distance``."""

    source: Ints
    target: Ints
    lag: Ints
    distance: Ints


@dataclass(frozen=True)
class System:
    """Blocks are numbered from 0; ``blocks`` has their numbers in the instance, ``ranked`` theirs here, each after
    those that it waits for in its own micro-batch.

    ``machines``: the blocks of each device. ``mates``: for each block, all that run on any of its devices. ``change``,
    ``take`` (devices x blocks) and ``capacity`` are of devices whose memory is limited. ``head`` and ``tail`` (blocks x
    micro-batches): the least time before an operation's start and after its end. ``durations``: likewise, as those of
    the micro-batches of a round may differ. ``ends``: the number of last ends of a block that may still be waited for.
    ``first`` and ``last``: outer barriers, by their numbers in the instance. ``cut``: ticks that schedules are longer
    than what is laid out here.
    """

    micro_batches: int
    blocks: tuple[int, ...]
    ranked: tuple[int, ...]
    durations: Ints
    machines: tuple[tuple[int, ...], ...]
    mates: tuple[tuple[int, ...], ...]
    waits: WaitArrays
    change: Ints
    take: Ints
    capacity: Ints
    head: Times
    tail: Times
    ends: int
    first: tuple[int, ...]
    last: tuple[int, ...]
    cut: int

    @property
    def operations(self) -> int:
        """The number of operations, without those of outer barriers."""
        return self.micro_batches * len(self.blocks)

    @cached_property
    def spent(self) -> Ints:
        """The time that each block takes for its first micro-batches, from none to all."""
        return np.concatenate([np.zeros((len(self.blocks), 1), dtype=np.int64), self.durations.cumsum(axis=1)], axis=1)


@dataclass(frozen=True)
class Analysis:
    """The data common to every schedule of ``micro_batches`` micro-batches: the implied ``order``, ``head``, ``tail``
    and ``durations`` of every operation, all by block of ``instance``. In that the micro-batches of a round are those
    of one problem, in ``turns``. ``first`` and ``last``: outer barriers, left out of heads, tails and systems. ``cut``:
    ticks that barriers are shorter here, in all (:func:`weft.solver.relations.graph.contracted`)."""

    turns: RoundTurns
    micro_batches: int
    order: Order
    head: Times
    tail: Times
    durations: Times
    first: tuple[int, ...]
    last: tuple[int, ...]
    cut: int

    @property
    def instance(self) -> TickProblem:
        return self.turns.alike

    @classmethod
    def of(cls, instance: TickProblem, micro_batches: int, order: Order, cut: int = 0) -> Analysis:
        """``order`` is the implied one of the instance's graph. All micro-batches are laid out."""
        n, turns = len(instance.durations), turns_of(instance)
        first, last = _outer_barriers(instance, turns.alike)
        graph = graph_of(without_barriers(instance, [i for n in (*first, *last) for i in turns.blocks[n]])
                         if first or last else instance)
        head = heads(graph, order, micro_batches, micro_batches)
        tail = tails(graph, order, micro_batches, micro_batches)
        durations = np.repeat(np.array(instance.durations, dtype=np.int64)[:, None], micro_batches, axis=1)
        if turns.width > 1:
            order, n = implied_order(turns.alike, graph_of(turns.alike), micro_batches * turns.width), len(turns.blocks)
        return cls(turns, micro_batches * turns.width, order[:n, :n], turns.counted(head), turns.counted(tail),
                   turns.counted(durations), first, last, cut)


def _outer_barriers(instance: TickProblem, alike: TickProblem) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The blocks of ``alike`` that can run before all others, and those that can run after them."""
    if any(arc.lag for arc in instance.arcs):
        return (), ()
    free = [i for i in barriers(alike) if not any(amounts.get(i) for amounts in (*alike.take, *alike.change))]
    arcs = [arc for arc in alike.arcs if arc.source != arc.target]
    first = tuple(i for i in free if not any(arc.target == i for arc in arcs))
    return first, tuple(i for i in free if i not in first and not any(arc.source == i for arc in arcs))


def system_of(known: Analysis, devices: Collection[int]) -> System:
    """The system of the blocks that run on any of ``devices``, on these devices."""
    instance = known.instance
    on = instance.blocks_on
    kept = sorted({i for d in devices for i in on[d]} - {*known.first, *known.last})
    number = {i: k for k, i in enumerate(kept)}
    durations = np.array([instance.durations[i] for i in kept], dtype=np.int64)
    rows = dict.fromkeys(tuple(number[i] for i in on[d] if i in number) for d in devices if on[d])
    mates = tuple(tuple(sorted({k for row in rows if i in row for k in row})) for i in range(len(kept)))
    waits = _waits(known, kept, durations)
    limited = [d for d in instance.distinct_devices if d in devices and instance.limited(d)]
    capacity = np.array([instance.capacity[d] for d in limited], dtype=np.int64)
    change, take = (np.array([[amounts[d].get(i, 0) for i in kept] for d in limited], dtype=np.int64)
                    .reshape(len(limited), len(kept)) for amounts in (instance.change, instance.take))
    within: nx.DiGraph[int] = nx.DiGraph()
    within.add_nodes_from(range(len(kept)))
    within.add_edges_from(zip(waits.source[waits.distance == 0].tolist(),
                              waits.target[waits.distance == 0].tolist(), strict=True))
    # An end so far back that all its arrivals are past is not needed.
    far = max([0, *(-(-int(lag) // max(1, int(durations[i])))
                    for i, lag in zip(waits.source.tolist(), waits.lag.tolist(), strict=True))])
    return System(known.micro_batches, tuple(kept), tuple(nx.lexicographical_topological_sort(within)),
                  known.durations[kept],
                  tuple(rows), mates, waits, change, take, capacity, known.head[kept], known.tail[kept],
                  min(_MOST_ENDS, 1 + far), known.first * known.micro_batches, known.last * known.micro_batches,
                  known.cut + int(known.durations[[*known.first, *known.last]].sum()))


def _waits(known: Analysis, kept: list[int], durations: Ints) -> WaitArrays:
    """The waits among the ``kept`` blocks, chains through the others among them, without those that follow."""
    chains = _chains(known, kept)
    found = []
    for distance in range(len(chains)):
        here = chains[distance]
        open_ = here > _NONE // 2
        for less in range(distance):  # implied by an earlier one, as micro-batches run in order
            open_ &= chains[less] < here
        for first in range(distance + 1):
            checkpoint()
            by_way = _joined(chains[first], chains[distance - first])
            open_ &= by_way < here
        for i, j in np.argwhere(open_).tolist():
            if i != j or int(here[i, j]) > distance * int(durations[i]):
                found.append((j, i, distance, int(here[i, j] - durations[i])))
    found.sort()
    target, source, distances, lags = np.array(found, dtype=np.int64).reshape(len(found), 4).T
    return WaitArrays(source, target, lags, distances)


def _joined(first: Ints, second: Ints) -> Ints:
    """The longest way over a third block, for all pairs."""
    n = len(first)
    ways = first[:, :, None] + second[None, :, :]
    own = np.arange(n)
    ways[own, own, :] = 2 * _NONE  # not over one of the two
    ways[:, own, own] = 2 * _NONE
    longest: Ints = ways.max(axis=1, initial=2 * _NONE)
    return longest


def _chains(known: Analysis, kept: list[int]) -> Ints:
    """Per distance in micro-batches, the least time from start to start that waits and chains through blocks that are
    not ``kept`` imply; ``_NONE`` if none does."""
    instance = known.instance
    n, most = len(instance.durations), min(known.micro_batches - 1, _FARTHEST)
    durations = np.array(instance.durations, dtype=np.int64)
    ways = np.full((most + 1, n, n), _NONE, dtype=np.int64)
    for arc in instance.arcs:
        if arc.distance <= most:
            ways[arc.distance, arc.source, arc.target] = max(ways[arc.distance, arc.source, arc.target],
                                                             durations[arc.source] + arc.lag)
    shared = np.zeros((n, n), dtype=bool)  # what follows elsewhere follows from chains
    for on in instance.blocks_on:
        shared[np.ix_(on, on)] = True
    np.fill_diagonal(shared, False)
    for i, j in np.argwhere(shared & (known.order <= most)).tolist():
        distance = int(known.order[i, j])
        ways[distance, i, j] = max(ways[distance, i, j], durations[i])
    if most:
        own = np.arange(n)
        ways[1, own, own] = np.maximum(ways[1, own, own], durations)
    for k in sorted(set(range(n)) - set(kept)):
        checkpoint()
        _take_out(ways, k)
    return ways[:, kept][:, :, kept]


def _take_out(ways: Ints, k: int) -> None:
    """Replace all chains through block ``k`` by direct ones."""
    most = len(ways) - 1
    around = np.full(most + 1, _NONE, dtype=np.int64)  # the longest way from k to k, per distance
    around[0] = 0
    for distance in range(1, most + 1):
        around[distance] = max(_NONE, *(around[distance - step] + ways[step, k, k] for step in range(1, distance + 1)))
    into = np.full((most + 1, ways.shape[1]), _NONE, dtype=np.int64)
    for distance in range(most + 1):
        for step in range(distance + 1):
            np.maximum(into[distance], ways[step, :, k] + around[distance - step], out=into[distance])
    for distance in range(most + 1):
        for step in range(distance + 1):
            through = into[step][:, None] + ways[distance - step, k][None, :]
            np.maximum(ways[distance], np.where(through > _NONE // 2, through, _NONE), out=ways[distance])
    ways[:, k, :] = _NONE
    ways[:, :, k] = _NONE
