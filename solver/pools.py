"""Devices with lanes whose level hangs on when blocks run: which they are, and the orders and waits that determine it.

A device runs one block at a time, so the order of its blocks determines its level. A device and its lanes are a *pool*
that shares the device's memory, and run in parallel. If one single engine of them runs all blocks that take or give,
its order determines the level as before. Otherwise the pool is *mixed*: its level at a time hangs on which blocks of
the others have started and ended by then.

*Waits.* In a schedule that fits, note for each operation that takes, and for each other engine of its pool, the last
operation there that gives and has ended by its start: the former *waits for the memory of* the latter. Orders with
these waits determine a mixed pool again, if every amount given back was taken before by a block that the giver waits
for (:func:`weft.solver.relations.min_dist.takes_before_giving`): the times that are componentwise least under orders
and waits fit the pool. Proof: the level of the pool is a sum over intervals, each from a taker's start to a giver's end
(or forever), and such an interval remains one under any times that keep the dependencies. Say two of them overlap at
the new times. Then neither ended before the other began at the old times, or there would be a wait that the new times
keep. So intervals that are all active at one moment of the new times overlap in pairs at the old ones, hence (Helly, in
one dimension) have a moment in common there, at which the pool contained them all; so they fit. The orders and waits of
any schedule that fits thus have an earliest schedule that fits and is nowhere later: no others need to be searched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import add
from typing import TypeAlias, TypeVar

from weft.solver.problem import Number, Problem

#: (block, micro-batch)
Op: TypeAlias = tuple[int, int]
#: The second starts no sooner than the first has ended.
Wait: TypeAlias = tuple[Op, Op]

_Time = TypeVar("_Time", bound="Number")


@dataclass(frozen=True)
class MixedPool:
    """A limited memory that ``engines`` share, a device (``owner``) and its lanes, none of which runs all blocks that
    change it.

    ``take`` is the amount that each block that takes or gives takes at its start, ``change`` its change of the level by
    its end, on all engines together.
    """

    owner: int
    engines: tuple[int, ...]
    capacity: int
    take: Mapping[int, int]
    change: Mapping[int, int]

    def given(self, block: int) -> int:
        """The amount that ``block`` gives back at its end, of the level before it."""
        return self.take[block] - self.change[block]

    @property
    def balanced(self) -> bool:
        """Whether a micro-batch gives back all it takes."""
        return not sum(self.change.values())


class PooledOrders(tuple[tuple[Op, ...], ...]):
    """Orders (:data:`weft.solver.timing.Orders`) of a problem with mixed pools, with ``waits`` for memory."""

    waits: tuple[Wait, ...]

    def __new__(cls, rows: Iterable[Sequence[Op]], waits: Iterable[Wait]) -> PooledOrders:
        """The orders of ``rows``, one for each device, with ``waits``."""
        made = super().__new__(cls, map(tuple, rows))
        made.waits = tuple(waits)
        return made


def holder(problem: Problem, owner: int) -> int | None:
    """The engine of ``owner`` that runs all blocks of its pool that take or give; ``owner`` if no block does; None if
    no single engine does."""
    changing = [problem.blocks[i].devices for i, places in problem.pool_places[owner].items()
                if any(problem.blocks[i].memory[place] or problem.blocks[i].workspace[place] for place in places)]
    return next((engine for engine in (owner, *problem.lanes_of[owner])
                 if all(engine in devices for devices in changing)), None)


def busy_as_one(problem: Problem) -> tuple[int | None, ...]:
    """Per device, the owner of its pool if the level of that hangs on times, else None: a device and its lanes then
    begin the next step together, as its blocks on one could take memory that this step's on another still occupy."""
    return tuple(owner if _hangs_on_times(problem, owner) else None for owner in problem.pool_of)


def _hangs_on_times(problem: Problem, owner: int) -> bool:
    memory = problem.devices[owner].memory
    return memory is not None and bool(problem.lanes_of[owner]) and holder(problem, owner) is None


def amounts_by_device(problem: Problem, scaled: Callable[[Number], int], room: Callable[[Number], int]) -> tuple[
        tuple[dict[int, int], ...], tuple[dict[int, int], ...], tuple[int | None, ...]]:
    """The amounts that every block takes and changes on each of its devices, and each device's capacity, None for
    unlimited.

    The memory of a pool is listed under the one engine that runs all blocks that take or give; a mixed pool is omitted.
    ``scaled`` makes whole numbers of amounts, ``room`` of capacities.
    """
    take = [{i: scaled(max(problem.blocks[i].memory[place], 0)) + scaled(problem.blocks[i].workspace[place])
             for i, place in places.items()} for places in problem.places_on]
    change = [{i: scaled(problem.blocks[i].memory[place]) for i, place in places.items()}
              for places in problem.places_on]
    capacity = [None if device.memory is None else room(device.memory) for device in problem.devices]
    for owner, lanes in enumerate(problem.lanes_of):
        if not lanes:
            continue
        engine = holder(problem, owner)
        pool_take = dict.fromkeys(problem.pool_places[owner], 0)
        pool_change = dict(pool_take)
        for other in (owner, *lanes):
            for i in take[other]:
                pool_take[i] += take[other][i]
                pool_change[i] += change[other][i]
            if engine is not None:
                take[other], change[other] = dict.fromkeys(take[other], 0), dict.fromkeys(change[other], 0)
        limit, capacity[owner] = capacity[owner], None
        if engine is not None:
            capacity[engine] = limit
            take[engine] = {i: pool_take[i] for i in take[engine]}
            change[engine] = {i: pool_change[i] for i in change[engine]}
    return tuple(take), tuple(change), tuple(capacity)


def mixed_pools(problem: Problem, scaled: Callable[[Number], int],
                room: Callable[[Number], int]) -> tuple[MixedPool, ...]:
    """The mixed pools of ``problem``; ``scaled`` makes whole numbers of amounts, ``room`` of capacities."""
    found = []
    for owner, places in enumerate(problem.pool_places):
        memory = problem.devices[owner].memory
        if memory is None or not _hangs_on_times(problem, owner):
            continue
        take, change = {}, {}
        for i, here in places.items():
            block = problem.blocks[i]
            if any(block.memory[place] or block.workspace[place] for place in here):
                take[i] = sum(scaled(max(block.memory[place], 0)) + scaled(block.workspace[place]) for place in here)
                change[i] = sum(scaled(block.memory[place]) for place in here)
        if any(take.values()):
            found.append(MixedPool(owner, (owner, *problem.lanes_of[owner]), room(memory), take, change))
    return tuple(found)


def peak_of(row: Iterable[Op], take: Mapping[int, int], change: Mapping[int, int]) -> int:
    """The highest level of a device that runs ``row``, from an empty one: the amount each block takes at its start, on
    top of the ``change`` of those before it."""
    blocks = [block for block, _ in row]
    levels = accumulate(map(change.__getitem__, blocks), initial=0)
    return max(0, max(map(add, levels, map(take.__getitem__, blocks)), default=0))


def one_after_another(problem: Problem, pools: Sequence[MixedPool], order: Sequence[Op]) -> PooledOrders:
    """The orders of the devices if all operations run in ``order``, on mixed pools one after the other."""
    rows: list[list[Op]] = [[] for _ in problem.devices]
    for op in order:
        for device in problem.blocks[op[0]].devices:
            rows[device].append(op)
    waits = {pair for pool in pools for pair in pairwise(
        op for op in order if not set(pool.engines).isdisjoint(problem.blocks[op[0]].devices))}
    return PooledOrders(rows, sorted(waits))


def memory_waits(problem: Problem, pools: Sequence[MixedPool], rows: Sequence[Sequence[Op]],
                 start: Mapping[Op, _Time], end: Mapping[Op, _Time], slack: float = 0) -> list[Wait]:
    """Which operations wait for the memory of which others at these times; ``rows`` are the devices' orders.

    Times that differ by ``slack`` or less are equal. An operation does not wait for one on the same engine: the order
    implies it.
    """
    waits: list[Wait] = []
    for pool in pools:
        givers = {engine: [op for op in rows[engine] if op[0] in pool.take and pool.given(op[0]) > 0]
                  for engine in pool.engines}
        takers = sorted({op for engine in pool.engines for op in rows[engine] if pool.take.get(op[0], 0) > 0},
                        key=lambda op: (start[op], op))
        ended = dict.fromkeys(pool.engines, 0)  # how many of the givers have ended by the taker's start
        for op in takers:
            for engine, row in givers.items():
                while ended[engine] < len(row) and end[row[ended[engine]]] <= start[op] + slack:
                    ended[engine] += 1
                if ended[engine] and engine not in problem.blocks[op[0]].devices:
                    waits.append((row[ended[engine] - 1], op))
    return waits


def sign(amount: Number) -> int:
    """1, 0 or -1: all that waits ask of an amount."""
    return (amount > 0) - (amount < 0)
