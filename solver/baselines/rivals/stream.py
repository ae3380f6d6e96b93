"""Streams over lanes: loads run ahead as far as the memory allows, computations in order, stores behind.

NeuGraph (Ma et al., USENIX ATC 2019) streams what does not fit a GPU's memory through it, chunk by chunk and column by
column: while one chunk is computed the next is loaded and the last result stored. This is that for any block graph on
devices that share memory with their lanes. All operations get an order in which they fit one after the other: for each
result, what it needs right before it. Then every operation starts as soon as it can, those first that come first in
the order, and takes memory ahead of others only if these still fit (:mod:`weft.solver.relations.pool_pass`). The same
is done from the end of that schedule back, and forth again in the order that comes of it (Li and Willis, European
Journal of Operational Research 56, 1992). Several orders are tried, and the shortest schedule is kept:

* Of blocks (:mod:`weft.solver.baselines.rivals.demand`). What a block needs comes in file order; or what keeps memory
  comes last, as it is then kept no longer than it must; or by Johnson's rule for two machines (Naval Research Logistics
  Quarterly 1, 1954): first what is computed for longer than its load takes, short loads first, then the others, long
  computations first; or by both. Parts that have nothing to do with each other (columns, jobs) come one after the
  other, or side by side. Or every block comes as late as it can.
* Of micro-batches. One after the other, or the next when half of one is done, a quarter, and so on.
* With less memory than there is, as what fits less fits more, and an operation with more room may be in the way of
  another. The amounts tried are the same whatever there is: more makes nothing worse, from one of these to another, as
  long as the settings are few enough to be tried all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product

from weft.solver.baselines.lib import sequential
from weft.solver.baselines.lib.base import NotApplicable
from weft.solver.baselines.rivals.demand import block_places
from weft.solver.pools import MixedPool, Op, PooledOrders
from weft.solver.problem import Problem
from weft.solver.relations.pool_pass import PoolPass
from weft.solver.relations.pool_times import kept
from weft.solver.ticks import TickProblem
from weft.solver.timing import Orders

__all__ = ["orders"]

#: Settings are tried with no more micro-batches than make so many operations, but with some.
_TRIAL_OPERATIONS, _FEW = 1000, 8
#: As many settings are tried as make so many operations in all, which takes about two seconds.
_TRIED_OPERATIONS = 20_000
#: Amounts of memory tried: so many times what all amounts are multiples of, and so many times the most that a block
#: takes; of that also the doubles of the last two.
_STEPS, _SLOTS = range(1, 17), (1, 2, 3, 4, 6)
#: Shares of a micro-batch that are done when the next begins.
_GAPS = (1.0, 0.5, 0.25, 0.125, 0.0625)


def orders(problem: Problem, micro_batches: int) -> Orders:
    """Per-device orders, with waits for memory, of any problem with lanes.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` without lanes, and where not even one micro-batch at a
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
    """Places of the blocks in a micro-batch, gaps between micro-batches, and how much memory there is, if not all."""
    gaps = _GAPS[:1] if micro_batches == 1 else _GAPS
    for room, gap, places in product([None, *_rooms(instance, micro_batches)], gaps, block_places(instance)):
        yield places, gap, room


def _merged(places: Sequence[float], gap: float, micro_batches: int) -> list[Op]:
    """All operations, by places of their blocks in a micro-batch of length 1, which begin ``gap`` apart."""
    return sorted(((i, m) for m in range(micro_batches) for i in range(len(places))),
                  key=lambda op: (places[op[0]] + gap * op[1], op[1], op[0]))


def _passed(instance: TickProblem, order: Sequence[Op], micro_batches: int, room: int | None) -> dict[Op, int] | None:
    """Starts by a pass in ``order``, or by one back from its end and forth again; None where the first gets stuck."""
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
    """Time runs backwards: what waits is waited for."""
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
    """Less memory than there is, the most first, from amounts that do not depend on what there is."""
    pools = _pools(instance, None)
    slot = max((max(pool.take.values()) for pool in pools), default=0)
    step = math.gcd(*(amount for pool in pools for amount in (*pool.take.values(), *pool.change.values())))
    largest = max((min(pool.capacity, micro_batches * sum(pool.take.values())) for pool in pools), default=0)
    slots = list(_SLOTS)
    while slot * slots[-1] < largest:
        slots.append(2 * slots[-2])
    rooms = {*(step * count for count in _STEPS), *(slot * count for count in slots)}
    return sorted((room for room in rooms if slot <= room < largest), reverse=True)
