"""The starts of a search: the known schedules and other immediate ones, and the periods that these repeat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from weft.solver.baselines import BASELINES, NotApplicable
from weft.solver.control.clock import OutOfTime
from weft.solver.judge.validate import violations
from weft.solver.period.params import PARAMETERS
from weft.solver.period.periodic import Periodic, fits_pools, in_order, repeat, retime
from weft.solver.problem import Problem
from weft.solver.relations.fixed_order import FixedOrder
from weft.solver.relations.pool_pass import paced
from weft.solver.schedule import Schedule
from weft.solver.ticks import TickProblem
from weft.solver.timing import Orders, time_orders


def _around(problem: Problem, micro_batches: int, held: int) -> Orders:
    from weft.solver.baselines.one_f_one_b_plus import around_blocks

    return around_blocks(problem, micro_batches, held=held)


#: A start of more operations is not made again for its steady state.
_MOST_OPERATIONS = 1_000_000

#: Per-device orders by name: all baselines, and building blocks around blocks on several devices.
STARTS: Mapping[str, Callable[[Problem, int], Orders]] = {
    **{name: entry.orders for name, entry in BASELINES.items()},
    **{f"blocks around, {held} held": partial(_around, held=held) for held in (4, 8)}}


def periodic_seed(instance: TickProblem, name: str | None) -> Periodic:
    """The shorter of the trivial period and the steady state of start ``name``, if time is left for it and it fits.

    The instance must have a schedule of one micro-batch, in balance. Raises like :func:`one_at_a_time`.
    """
    trivial = found = one_at_a_time(instance)
    micro_batches = 4 * max(6, len(instance.problem.devices))
    if name is not None and name in STARTS and micro_batches * len(instance.durations) <= _MOST_OPERATIONS:
        with suppress(NotApplicable, OutOfTime):
            found = steady_state(instance, STARTS[name](instance.problem, micro_batches)) or trivial
    return min((trivial, found), key=lambda known: known.period)


def one_at_a_time(instance: TickProblem) -> Periodic:
    """Each micro-batch finished before the next one starts.

    Raises :class:`~weft.solver.baselines.NotApplicable` if no order is found in which one micro-batch fits.
    """
    orders = _alone(instance)
    fixed = FixedOrder(instance, 1, orders)
    across = [-(-(fixed.start[arc.source, 0] + instance.durations[arc.source] + arc.lag - fixed.start[arc.target, 0])
                // arc.distance) for arc in instance.arcs if arc.distance]
    return retime(instance, max([fixed.makespan, *across]), [fixed.start[i, 0] for i in instance.blocks])


def _alone(instance: TickProblem) -> Orders:
    """Orders of one micro-batch: short ones, or else any that fits."""
    try:
        short = paced(instance, 1, BASELINES["greedy"].orders(instance.problem, 1))
        if short is None:
            raise NotApplicable("the order leaves no way to keep what lanes share")
        return short
    except NotApplicable:
        from weft.solver.cpsat.budget import Budget
        from weft.solver.feasibility.memory_order import device_rows, find_room

        order = find_room(instance, 1, Budget(deterministic=PARAMETERS.alone)).order
        if order is None:
            raise
        return device_rows(instance, order)


def steady_state(instance: TickProblem, orders: Orders) -> Periodic | None:
    """The ring of every device in the middle of a schedule, if it runs each of its blocks once there and the rings fit.

    Only the order is used: with unequal durations a schedule of a repeated pattern need not repeat its times.
    """
    rings = []
    for on, row in zip(instance.blocks_on, orders, strict=True):
        ring = _ring(len(on), row)
        if ring is None:
            return None
        rings.append(ring)
    found = in_order(instance, rings)
    if found is None:
        return None
    problem = instance.problem
    count = found.depth + 3
    repeated = Schedule(problem, count, time_orders(problem, count, repeat(found, count)), 0.0)
    return found if fits_pools(found) and not violations(repeated, limit=1) else None


def _ring(size: int, row: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]] | None:
    """``size`` neighbours of ``row`` that are different blocks, from the middle on."""
    for first in range(len(row) // 2, len(row) - size + 1):
        ring = row[first:first + size]
        if len({block for block, _ in ring}) == size:
            return ring
    return None
