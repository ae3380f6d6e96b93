"""Periodic schedules to start the period search from: what a finite schedule repeats in its middle."""

from __future__ import annotations

from fractions import Fraction

from solver.baselines import BASELINES, NotApplicable
from solver.completion import repeat
from solver.cyclic import Periodic, retime
from solver.instance import Instance
from solver.paths import FixedOrder
from solver.schedule import Schedule
from solver.timing import Orders, time_orders
from solver.validate import violations

__all__ = ["one_at_a_time", "periodic_seed", "steady_state"]


def periodic_seed(instance: Instance, name: str | None) -> Periodic:
    """The shorter of the trivial period and the steady state of baseline ``name``, if it has one that fits.

    The instance must have a schedule of one micro-batch, in balance.
    """
    trivial = one_at_a_time(instance)
    if name is None or name not in BASELINES:
        return trivial
    micro_batches = 4 * max(6, len(instance.problem.devices))
    try:
        found = steady_state(instance, BASELINES[name].orders(instance.problem, micro_batches), micro_batches)
    except NotApplicable:
        return trivial
    return min((trivial, found or trivial), key=lambda known: known.period)


def one_at_a_time(instance: Instance) -> Periodic:
    """Each micro-batch finished before the next one starts."""
    fixed = FixedOrder(instance, 1, BASELINES["greedy"].orders(instance.problem, 1))
    across = [-(-(fixed.start[arc.source, 0] + instance.durations[arc.source] + arc.lag - fixed.start[arc.target, 0])
                // arc.distance) for arc in instance.arcs if arc.distance]
    return retime(instance, max([fixed.makespan, *across]), [fixed.start[i, 0] for i in instance.blocks])


def steady_state(instance: Instance, orders: Orders, micro_batches: int) -> Periodic | None:
    """What two neighbouring micro-batches in the middle of a schedule do alike, if that can be repeated and fits."""
    fixed = FixedOrder(instance, micro_batches, orders)
    middle = micro_batches // 2
    apart = {fixed.start[i, middle + 1] - fixed.start[i, middle] for i in instance.blocks}
    if len(apart) > 1 or min(apart) < instance.heaviest_load:
        return None
    first = min(fixed.start[i, middle] for i in instance.blocks)
    period = Fraction(apart.pop())
    starts = tuple(Fraction(fixed.start[i, middle] - first) for i in instance.blocks)
    found = Periodic(instance, period, starts)
    problem = instance.problem
    count = found.depth + 3
    repeated = Schedule(problem, count, time_orders(problem, count, repeat(found, count)), 0.0)
    if violations(repeated, limit=1):
        return None
    return retime(instance, period, starts)
