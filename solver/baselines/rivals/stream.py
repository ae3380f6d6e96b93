"""Streams over lanes: loads run ahead as far as the memory allows, computations in order, stores after them.

NeuGraph (Ma et al., USENIX ATC 2019) streams data that does not fit a GPU's memory through it, chunk by chunk and
column by column: while one chunk is computed the next is loaded and the last result stored. This is the same for any
block graph on devices that share memory with their lanes. All operations get an order in which they fit one after the
other: for each result, its inputs right before it. Then every operation starts as soon as it can, the first in the
order first, and takes memory ahead of others only if these still fit (:mod:`weft.solver.relations.pool_pass`). The same
is done from the end of that schedule back, and forth again in the resulting order (Li and Willis, European Journal of
Operational Research 56, 1992). Several orders are tried, and the shortest schedule is kept:

* Of blocks. The inputs of a block come in file order; or blocks that keep memory come last, to keep it no longer than
  necessary; or by Johnson's rule for two machines (Naval Research Logistics Quarterly 1, 1954): first those computed
  for longer than their loads take, short loads first, then the others, long computations first; or by both; or loads
  for one computation alone by Gilmore and Gomory's tour, and blocks that keep memory after them. Independent parts
  (columns, jobs) come one after the other, or side by side. Or every block comes as late as it can.
* Of micro-batches. One after the other, or the next when half of one is done, a quarter, and so on.
* With less memory than there is, as operations with less room may fit better, and an operation with more room may block
  another. The amounts tried do not depend on the capacity: more makes nothing worse, from one of these to another, as
  long as there are few enough settings to try them all.

Orders of a micro-batch's blocks that take memory late: each right after its inputs, by several preferences, or as late
as it can.

The least time of jobs on two machines with no buffer between them, or with one place left to wait in.

A job is loaded, then computed. If the next load begins together with a computation, as it does if memory has room for
two, each job after another costs the longer of the two: a travelling salesman's tour of a kind that Gilmore and Gomory
solve (Operations Research 12, 1964). Sorted, the k-th shortest computation goes with the k-th shortest load. That is
the least that pairs can cost, in several rings; neighbours in the sorted lists are exchanged at the least cost until
one ring is left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product

from weft.solver.baselines.lib import sequential
from weft.solver.baselines.lib.base import NotApplicable
from weft.solver.late import nx
from weft.solver.pools import MixedPool, Op, PooledOrders
from weft.solver.problem import Problem
from weft.solver.relations.graph import joined
from weft.solver.relations.pool_pass import PoolPass, kept
from weft.solver.ticks import TickProblem
from weft.solver.timing import Orders

#: Settings are tried with at most the micro-batches that make this many operations, but with some.
_TRIAL_OPERATIONS, _FEW = 1000, 8
#: The total number of operations in the settings tried, which takes about two seconds.
_TRIED_OPERATIONS = 20_000
#: Amounts of memory tried: multiples of the unit of all amounts, and multiples of the most that a block takes; of that
#: also the doubles of the last two.
_STEPS, _SLOTS = range(1, 17), (1, 2, 3, 4, 6)
#: Shares of a micro-batch that are done when the next begins.
_GAPS = (1.0, 0.5, 0.25, 0.125, 0.0625)


def orders(problem: Problem, micro_batches: int) -> Orders:
    """Per-device orders, with waits for memory, of any problem with lanes.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` without lanes, and if not even one micro-batch at a
    time fits.
    """
    if not problem.has_lanes:
        raise NotApplicable("it needs devices with lanes")
    instance = TickProblem.of(problem)
    trial = min(micro_batches, max(_FEW, _TRIAL_OPERATIONS // len(problem.blocks)))
    most = max(1, _TRIED_OPERATIONS // (trial * len(problem.blocks)))
    found: list[tuple[int, int, Sequence[float], float, int | None]] = []
    for number, (places, gap, room) in enumerate(islice(_settings(instance, micro_batches), most)):
        start = _passed(instance, _merged(places, gap, trial), trial, room)
        if start is not None:
            found.append((_makespan(instance, start), number, places, gap, room))
    for _, _, places, gap, room in sorted(found, key=lambda entry: entry[:2]):
        made = _made(instance, _merged(places, gap, micro_batches), micro_batches, room)
        if made is not None:
            return made
    alone = sequential.block_order(sequential.without_lanes(problem), micro_batches)
    made = _made(instance, [(i, m) for m in range(micro_batches) for i in alone], micro_batches)
    return sequential.orders(problem, micro_batches) if made is None else made


def _settings(instance: TickProblem, micro_batches: int) -> Iterator[tuple[Sequence[float], float, int | None]]:
    """Places of the blocks in a micro-batch, gaps between micro-batches, and the memory available, if not all."""
    gaps = _GAPS[:1] if micro_batches == 1 else _GAPS
    for room, gap, places in product([None, *_rooms(instance, micro_batches)], gaps, block_places(instance)):
        yield places, gap, room


def _merged(places: Sequence[float], gap: float, micro_batches: int) -> list[Op]:
    """All operations, by places of their blocks in a micro-batch of length 1, which begin ``gap`` apart."""
    return sorted(((i, m) for m in range(micro_batches) for i in range(len(places))),
                  key=lambda op: (places[op[0]] + gap * op[1], op[1], op[0]))


def _passed(instance: TickProblem, order: Sequence[Op], micro_batches: int, room: int | None) -> dict[Op, int] | None:
    """Starts by a pass in ``order``, or by one back from its end and forth again; None if the first gets stuck."""
    pools = _pools(instance, room)
    first = PoolPass(instance, micro_batches, pools, order).run()
    if first is None:
        return None
    last = micro_batches - 1
    back = PoolPass(_mirrored(instance), micro_batches, [
        replace(pool, take={i: pool.given(i) for i in pool.take}, change={i: -c for i, c in pool.change.items()})
        for pool in pools], [(i, last - m) for i, m in reversed(_by_start(first))]).run()
    if back is None:
        return first
    left = {(i, last - m): -at - instance.durations[i] for (i, m), at in back.items()}
    again = PoolPass(instance, micro_batches, pools, _by_start(left)).run()
    return first if again is None else min(first, again, key=lambda start: _makespan(instance, start))


def _mirrored(instance: TickProblem) -> TickProblem:
    """Time runs backwards: dependents become producers."""
    return replace(instance, arcs=tuple(replace(arc, source=arc.target, target=arc.source) for arc in instance.arcs))


def _by_start(start: Mapping[Op, int]) -> list[Op]:
    return sorted(start, key=lambda op: (start[op], op))


def _makespan(instance: TickProblem, start: Mapping[Op, int]) -> int:
    return max(at + instance.durations[op[0]] for op, at in start.items())


def _made(instance: TickProblem, order: Sequence[Op], micro_batches: int, room: int | None = None
          ) -> PooledOrders | None:
    start = _passed(instance, order, micro_batches, room)
    if start is None:
        return None
    rows: list[list[Op]] = [[] for _ in instance.capacity]
    for op in _by_start(start):
        for device in instance.problem.blocks[op[0]].devices:
            rows[device].append(op)
    return kept(instance, micro_batches, rows, start)


def _pools(instance: TickProblem, room: int | None) -> list[MixedPool]:
    """Every limited memory, of a device alone or with lanes, with no more than ``room`` of it."""
    whole = instance.in_sequence
    return [MixedPool(owner, (owner, *instance.problem.lanes_of[owner]),
                      capacity if room is None else min(capacity, room),
                      {i: take for i, take in whole.take[owner].items() if take or whole.change[owner][i]},
                      {i: change for i, change in whole.change[owner].items() if change or whole.take[owner][i]})
            for owner, capacity in enumerate(whole.capacity) if capacity is not None and whole.limited(owner)]


def _rooms(instance: TickProblem, micro_batches: int) -> list[int]:
    """Amounts below the capacities, the most first, that do not depend on the capacities."""
    pools = _pools(instance, None)
    slot = max((max(pool.take.values()) for pool in pools), default=0)
    step = math.gcd(*(amount for pool in pools for amount in (*pool.take.values(), *pool.change.values())))
    largest = max((min(pool.capacity, micro_batches * sum(pool.take.values())) for pool in pools), default=0)
    slots = list(_SLOTS)
    while slot * slots[-1] < largest:
        slots.append(2 * slots[-2])
    rooms = {*(step * count for count in _STEPS), *(slot * count for count in slots)}
    return sorted((room for room in rooms if slot <= room < largest), reverse=True)


def block_places(instance: TickProblem) -> list[tuple[float, ...]]:
    """The begin of each block in a micro-batch of length 1, in different ways that keep its waits: blocks one after the
    other in the order of the file, and as :func:`demanded` by all keys, for the last blocks and for all; each also with
    the independent parts side by side; and all blocks as late as the longest way to the end allows."""
    waited_for = {arc.source for arc in instance.arcs if not arc.distance}
    last = [i for i in instance.blocks if i not in waited_for]
    found = [instance.problem.topological_order, *(
        tuple(demanded(instance, key, roots)) for key in _keys(instance) for roots in (last, instance.blocks))]
    part = _parts(instance)
    return list(dict.fromkeys([*(places for order in dict.fromkeys(found) for places in (
        _begins(instance, order, [0] * len(order)), _begins(instance, order, part))), _latest(instance)]))


def demanded(instance: TickProblem, key: Sequence[tuple[float, ...]], roots: Iterable[int]) -> list[int]:
    """``roots`` by ``key`` and, right before each, its inputs that are not yet listed, again by ``key``."""
    wanted = set(roots)
    after: list[list[int]] = [[-1] if i in wanted else [] for i in instance.blocks]
    for arc in instance.arcs:
        if not arc.distance:
            after[arc.source].append(arc.target)
    needs: nx.DiGraph[int] = nx.DiGraph()
    for i in sorted(instance.blocks, key=lambda i: (key[i], i)):
        needs.add_edges_from((j, i) for j in after[i])
    return [i for i in nx.dfs_postorder_nodes(needs, -1) if i >= 0]


def _keys(instance: TickProblem) -> Iterator[list[tuple[float, ...]]]:
    """By file; by the memory that a block and all its inputs keep, the least first; by Johnson's rule; by both; by
    Gilmore and Gomory's tour if a computation gives back a load for it alone, the others last, by both."""
    whole, blocks = instance.in_sequence, instance.blocks
    head, rest, held = instance.heads_and_tails[0], [0] * len(blocks), [0.0] * len(blocks)
    waits: list[list[int]] = [[] for _ in blocks]
    waiters = [0] * len(blocks)
    for arc in instance.arcs:
        if not arc.distance:
            waits[arc.target].append(arc.source)
            waiters[arc.source] += 1
    for i in instance.problem.topological_order:
        if waits[i]:
            rest[i] = instance.durations[i] + min(rest[j] for j in waits[i])
        changes = sum(change[i] for change, capacity in zip(whole.change, whole.capacity, strict=True)
                      if capacity is not None and i in change)
        held[i] = round(changes + sum(held[j] / waiters[j] for j in waits[i]), 6)
    johnson = [(0, before) if before < after else (1, -after) for before, after in zip(head, rest, strict=True)]
    yield [()] * len(blocks)
    yield [(amount,) for amount in held]
    yield list(johnson)
    both: list[tuple[float, ...]] = [(amount, *times) for amount, times in zip(held, johnson, strict=True)]
    yield both
    jobs = [(i, waits[i]) for i in blocks if waits[i] and not held[i] and all(
        held[j] > 0 and waiters[j] == 1 and not waits[j] for j in waits[i])]
    if jobs:
        order = tour([sum(instance.durations[j] for j in loads) for _, loads in jobs],
                     [instance.durations[i] for i, _ in jobs])
        turn = {i: turn for turn, job in enumerate(order) for i in (*jobs[job][1], jobs[job][0])}
        yield [(0, turn[i]) if i in turn else (1, *both[i]) for i in blocks]


def _parts(instance: TickProblem) -> list[int]:
    """The number of the independent part that each block belongs to."""
    parts = joined([*({i} for i in instance.blocks), *({arc.source, arc.target} for arc in instance.arcs)])
    number_of = {i: number for number, members in enumerate(parts) for i in members}
    return [number_of[i] for i in instance.blocks]


def _begins(instance: TickProblem, order: Sequence[int], part: Sequence[int]) -> tuple[float, ...]:
    """The begin of each block if every part, in ``order``, has the length 1."""
    length = [0] * len(order)
    begins = [0] * len(order)
    for i in order:
        begins[i] = length[part[i]]
        length[part[i]] += instance.durations[i]
    return tuple(begins[i] / length[part[i]] for i in instance.blocks)


def _latest(instance: TickProblem) -> tuple[float, ...]:
    rest = [own + behind for own, behind in zip(instance.durations, instance.heads_and_tails[1], strict=True)]
    return tuple(1 - each / max(rest) for each in rest)


def tour(loads: Sequence[int], computations: Sequence[int]) -> list[int]:
    """The jobs in the order of least cost: the first load, the last computation, and in between the longer of each
    computation and the next load. A job without load and computation begins and ends the ring."""
    first, second = [0, *loads], [0, *computations]
    by_first = sorted(range(len(first)), key=lambda job: first[job])
    by_second = sorted(range(len(second)), key=lambda job: second[job])
    a, b = [first[job] for job in by_first], [second[job] for job in by_second]
    rings = nx.utils.UnionFind(range(len(first)))
    for job, follower in zip(by_second, by_first, strict=True):
        rings.union(job, follower)
    chosen = []
    for place in sorted(range(len(a) - 1), key=lambda k: max(0, min(a[k + 1], b[k + 1]) - max(a[k], b[k]))):
        one, other = by_second[place], by_second[place + 1]
        if rings[one] != rings[other]:
            rings.union(one, other)
            chosen.append(place)
    # In this order each exchange costs as much as it would alone.
    for place in (*sorted((k for k in chosen if b[k] <= a[k]), reverse=True),
                  *sorted(k for k in chosen if b[k] > a[k])):
        by_first[place], by_first[place + 1] = by_first[place + 1], by_first[place]
    follower_of = dict(zip(by_second, by_first, strict=True))
    found, job = [], follower_of[0]
    while job:
        found.append(job - 1)
        job = follower_of[job]
    return found
