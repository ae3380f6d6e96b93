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
from itertools import pairwise

from weft.solver.control.clock import checkpoint
from weft.solver.ticks import TickProblem


def in_flight_bound(instance: TickProblem, micro_batches: int) -> int:
    """A lower bound on the makespan of ``micro_batches`` micro-batches, in ticks; 0 where memory holds them all."""
    head, tail = instance.heads_and_tails
    best, heaviest = 0, instance.heaviest_load

    def most(blocks: list[int], last: int, held: int) -> int:
        through = instance.durations[blocks[0]] + tail[blocks[0]]
        rounds, behind = divmod(micro_batches - 1, held)
        return head[blocks[0]] + rounds * (through - tail[last]) + through + behind * heaviest

    for most_, blocks, last, held in sorted(((most(*each), *each) for each in _memories(instance, micro_batches)),
                                            reverse=True):
        if most_ <= best:
            break
        first, start = blocks[0], _from(instance, blocks[0])
        if any(later not in _from(instance, block) for block, later in pairwise(blocks)):
            continue
        rounds, behind = divmod(micro_batches - 1, held)
        ends = [min(map(start.__getitem__, on)) + (behind + 1) * sum(instance.durations[i] for i in on)
                + min(map(tail.__getitem__, on)) for on in instance.blocks_on if on and start.keys() >= set(on)]
        chain = start[last] + instance.durations[last]
        best = max(best, head[first] + rounds * chain + max([chain + tail[last], *ends]))
    return best


def _memories(instance: TickProblem, micro_batches: int) -> Iterator[tuple[list[int], int, int]]:
    """Of each limited device its blocks in topological order, y and K. Whether they follow each other is not known."""
    rank = {block: place for place, block in enumerate(instance.problem.topological_order)}
    for d in filter(instance.limited, instance.distinct_devices):
        take, change, capacity = instance.take[d], instance.change[d], instance.capacity[d]
        blocks = sorted((i for i in take if take[i] or change[i]), key=rank.__getitem__)
        levels, level = list[int](), 0
        for i in blocks:
            level += change[i]
            levels.append(level)
        last = next((i for i, level in zip(blocks, levels, strict=True) if level < levels[0]), None)
        if last is None or min(levels) < 0 or capacity is None:
            continue
        held = (capacity - take[blocks[0]]) // levels[0] + 1
        if 0 < held < micro_batches:
            yield blocks, last, held


def _from(instance: TickProblem, first: int) -> Mapping[int, int]:
    """How much later than ``first`` what follows it in its micro-batch starts at least."""
    checkpoint()
    order = instance.problem.topological_order
    start = {first: 0}
    into: list[list[tuple[int, int]]] = [[] for _ in instance.blocks]
    for arc in instance.arcs:
        if not arc.distance:
            into[arc.target].append((arc.source, arc.lag))
    for i in order[order.index(first) + 1:]:
        found = [start[before] + instance.durations[before] + lag for before, lag in into[i] if before in start]
        if found:
            start[i] = max(found)
    return start
