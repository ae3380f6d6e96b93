"""The memory x time that one micro-batch requires on a device (Little's law).

A micro-batch occupies each amount on a device at least for the longest chain from its taker's start to its giver's end.
All these areas fit under the device's capacity, side by side.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.solver.bounds.heads import Times
from weft.solver.relations.min_dist import Distances, lifetimes_in, longest_paths
from weft.solver.ticks import TickProblem


def chains_of_one(instance: TickProblem) -> Distances:
    """Longest chains within one micro-batch: a period so long that nothing reaches into the next one."""
    horizon = sum(instance.durations) + sum(arc.lag for arc in instance.arcs) + 1
    lags = longest_paths(instance, horizon)
    if lags is None:
        raise AssertionError("one micro-batch's dependencies have a cycle")
    return lags


def area_of_one(instance: TickProblem, device: int, lags: Distances) -> int | None:
    """Units x ticks that one micro-batch takes up on ``device`` at least; None if memory bounds nothing."""
    if not instance.capacity[device] or not instance.limited(device):
        return None
    return area_in(instance, instance.take[device], instance.change[device], lags)


def area_in(instance: TickProblem, take: Mapping[int, int], change: Mapping[int, int], lags: Distances) -> int | None:
    """Like :func:`area_of_one`, for the given amounts that blocks take and change in a limited memory: a device's, or
    that of a mixed pool, as an area does not depend on the order."""
    lifetimes = lifetimes_in(instance, take, change, lags)
    if lifetimes is None or any(life < 0 for _, _, _, life in lifetimes.held):
        return None
    return lifetimes.workspace + sum(life * amount for _, _, amount, life in lifetimes.held)


def memory_bound(instance: TickProblem, device: int, area: int, micro_batches: int, head: Times, tail: Times) -> int:
    """A lower bound on the makespan, in ticks, from ``area`` for each micro-batch on ``device``.

    Of capacity x makespan, the unusable part does not count. By time t at most the operations with heads up to t have
    taken: until their takes add up to the capacity, the rest of it is lost. Likewise at the end, where at most the
    operations that can be this late still occupy memory or give back. ``head`` has the heads of the first few
    micro-batches (or of all), ``tail`` the tails of the last few.
    """
    return bound_in(instance.take[device], instance.change[device], instance.capacity[device] or 0, area,
                    micro_batches, head, tail)


def bound_in(take: Mapping[int, int], change: Mapping[int, int], capacity: int, area: int, micro_batches: int,
             head: Times, tail: Times) -> int:
    """Like :func:`memory_bound`, in a memory of ``capacity`` with the given amounts that blocks take and change."""
    everything = head.shape[1] == micro_batches
    starts = _lost([(head[i], amount) for i, amount in take.items() if amount], capacity, everything)
    ends = _lost([(tail[i, ::-1], take[i] - change[i]) for i in take if take[i] > change[i]], capacity, everything)
    work = micro_batches * area
    # Both ends must not count any time twice; otherwise less is counted of one or both of them.
    areas = [work + lost + more for lost, begin in starts for more, end in ends
             if work + lost + more >= (begin + end) * capacity]
    return -(-max(areas) // capacity)


def _lost(changes: list[tuple[Times, int]], capacity: int, everything: bool) -> list[tuple[int, int]]:
    """The capacity (units x ticks) that is lost at one end, and in how long a time; then the same only for the time
    before anything happens.

    ``changes`` has times, in rising order, with the amount that the level may rise by at each. Unless these are
    ``everything``, more may follow after the least of the last times.
    """
    until = None if everything else min(int(times[-1]) for times, _ in changes)
    rises = sorted((int(at), amount) for times, amount in changes for at in times)
    lost = level = now = 0
    for at, amount in rises:
        if level >= capacity or (until is not None and at > until):
            break
        lost += (at - now) * (capacity - level)
        now = at
        level += amount
    first = rises[0][0]
    return [(lost, now), (first * capacity, first)]
