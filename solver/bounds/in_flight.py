"""Rounds through the pipeline where one device's memory holds few micro-batches: a bound without matrices.

Let a device's blocks follow each other in a micro-batch, with no level below 0 on the way: x first, which leaves the
level at a, and y the first one that leaves it below a. When x of micro-batch m + K starts, the K micro-batches before
it have run x. If y of micro-batch m has not run by then, nor has that of any later one, and these K hold K a at least;
others hold 0 at least. So with K a + (what x takes) above the capacity, y of m ends before x of m + K starts, and x of
m + K starts one chain from x to the end of y later than x of m.

With N micro-batches that is so (N - 1) // K times. The last round has (N - 1) % K more behind its first one; a device
whose blocks all follow x runs theirs after the shortest way to it, and before the shortest way to the end.

:mod:`weft.solver.bounds.makespan` knows more where there is time for its matrices, of blocks x blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise

from weft.solver.control.clock import checkpoint
from weft.solver.ticks import TickProblem


def in_flight_bound(instance: TickProblem, micro_batches: int) -> int:
    """A lower bound on the makespan of ``micro_batches`` micro-batches, in ticks; 0 where memory holds them all."""
    (head, tail), durations, heaviest = instance.heads_and_tails, instance.durations, instance.heaviest_load
    memories = []
    for blocks, last, held in _memories(instance, micro_batches):
        (rounds, behind), through = divmod(micro_batches - 1, held), durations[blocks[0]] + tail[blocks[0]]
        most = head[blocks[0]] + rounds * (through - tail[last]) + through + behind * heaviest
        memories.append((most, blocks, last, rounds, behind))
    best = 0
    for most, blocks, last, rounds, behind in sorted(memories, reverse=True):
        if most <= best:
            break
        start = _from(instance, blocks[0])
        if any(later not in _from(instance, block) for block, later in pairwise(blocks)):
            continue
        ends = [min(map(start.__getitem__, on)) + (behind + 1) * sum(map(durations.__getitem__, on))
                + min(map(tail.__getitem__, on)) for on in instance.blocks_on if on and start.keys() >= {*on}]
        chain = start[last] + durations[last]
        best = max(best, head[blocks[0]] + rounds * chain + max([chain + tail[last], *ends]))
    return best


def _memories(instance: TickProblem, micro_batches: int) -> Iterator[tuple[list[int], int, int]]:
    """Of each limited device its blocks in topological order, y and K. Whether they follow each other is not known."""
    rank = {block: place for place, block in enumerate(instance.problem.topological_order)}
    for d in filter(instance.limited, instance.distinct_devices):
        take, change, capacity = instance.take[d], instance.change[d], instance.capacity[d]
        blocks = sorted((i for i in take if take[i] or change[i]), key=rank.__getitem__)
        levels = [*accumulate(change[i] for i in blocks)]
        last = next((i for i, level in zip(blocks, levels, strict=True) if level < levels[0]), None)
        if last is not None and min(levels) >= 0 and capacity is not None:
            held = (capacity - take[blocks[0]]) // levels[0] + 1
            if 0 < held < micro_batches:
                yield blocks, last, held


def _from(instance: TickProblem, first: int) -> Mapping[int, int]:
    """How much later than ``first`` what follows it in its micro-batch starts at least."""
    checkpoint()
    into: list[list[tuple[int, int]]] = [[] for _ in instance.blocks]
    for arc in instance.arcs:
        if not arc.distance:
            into[arc.target].append((arc.source, arc.lag + instance.durations[arc.source]))
    order, start = instance.problem.topological_order, {first: 0}
    for i in order[order.index(first) + 1:]:
        if found := [start[before] + length for before, length in into[i] if before in start]:
            start[i] = max(found)
    return start
