"""What mixed pools (:mod:`weft.solver.pools`) hold at given times, and orders paced so that it is no more than they
have."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from weft.solver.pools import MixedPool, Op, PooledOrders, memory_waits
from weft.solver.relations.fixed_order import FixedOrder
from weft.solver.relations.pool_pass import PoolPass
from weft.solver.ticks import TickProblem
from weft.solver.timing import DeadlockError, Orders

__all__ = ["fits_pools", "kept", "paced", "with_waits"]


def fits_pools(instance: TickProblem, start: Mapping[Op, int | Fraction]) -> bool:
    """Whether all mixed pools have room for what they hold if operations start so, in ticks."""
    return all(_peak(instance, pool, start) <= pool.capacity for pool in instance.mixed_pools)


def _peak(instance: TickProblem, pool: MixedPool, start: Mapping[Op, int | Fraction]) -> int:
    changes: list[tuple[int | Fraction, int, int]] = []
    for op, at in start.items():
        if op[0] in pool.take:
            changes.append((at, 1, pool.take[op[0]]))
            changes.append((at + instance.durations[op[0]], 0, -pool.given(op[0])))
    level = peak = 0
    for _, _, step in sorted(changes):  # at one time, what ends comes first
        level += step
        peak = max(peak, level)
    return peak


def with_waits(instance: TickProblem, rows: Orders, start: Mapping[Op, int]) -> PooledOrders:
    """``rows`` with what waits for memory at these times, in ticks."""
    end = {op: at + instance.durations[op[0]] for op, at in start.items()}
    return PooledOrders(rows, memory_waits(instance.problem, instance.mixed_pools, rows, start, end))


def paced(instance: TickProblem, micro_batches: int, orders: Orders) -> Orders | None:
    """``orders`` with waits under which the earliest times fit the mixed pools; None where none are found.

    As they are where no pool is mixed. Else their earliest times are taken if they fit. If not, time is gone through
    once: an operation starts as soon as its turn has come, what it waits for is there, and its pools have room; that
    may end where nothing can start any more.
    """
    if not instance.mixed_pools:
        return orders
    start = _earliest(instance, micro_batches, orders)
    fits = start is not None and fits_pools(instance, start)
    if not fits:
        rows = tuple(orders)
        start = _earliest(instance, micro_batches, rows)
        start = None if start is None else PoolPass(
            instance, micro_batches, instance.mixed_pools, sorted(start, key=lambda op: (start[op], op)), rows,
            safe=False).run()
    if start is None:
        return None
    found = kept(instance, micro_batches, orders, start)
    return orders if found is None and fits else found


def kept(instance: TickProblem, micro_batches: int, rows: Orders, start: Mapping[Op, int]) -> PooledOrders | None:
    """``rows`` with what waits for memory at these times, which fit; None where what is given before it is taken asks
    for more than waits."""
    found = with_waits(instance, rows, start)
    again = _earliest(instance, micro_batches, found)
    return found if again is not None and fits_pools(instance, again) else None


def _earliest(instance: TickProblem, micro_batches: int, orders: Orders) -> Mapping[Op, int] | None:
    """The earliest starts; None where something waits for itself."""
    try:
        return FixedOrder(instance, micro_batches, orders).start
    except DeadlockError:
        return None
