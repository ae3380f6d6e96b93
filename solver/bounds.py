"""Lower bounds on the makespan of N micro-batches and on the time per micro-batch of any steady state, in ticks.

All of them hold for every schedule, periodic or not. Let est(i) be the longest chain of dependencies before block i
starts and tail(i) the longest after it ends, within one micro-batch.

* *Device*: the blocks S of one device with est >= e and tail >= t run N times each, one at a time, none before e
  and with at least t to follow: makespan >= e + N load(S) + t. S ranges over all such sets of a device (and of
  transfers of a link).
* *Chain across micro-batches*: block i of micro-batch m starts after that of m - 1 (a device runs a block's
  instances in order) and after what it waits for, at any distance: a longest path over all N micro-batches.
* *Memory* (Little's law): one micro-batch holds each amount on a device at least for the longest chain from its
  taker's start to its giver's end. Over the window from the first take to the last give, the total held is at
  most capacity x window: window >= N x sum(amount x least lifetime) / capacity.
"""

from __future__ import annotations

from fractions import Fraction

from solver.closure import Lags, least_lifetimes, longest_paths
from solver.instance import Instance

__all__ = ["makespan_bound", "steady_bound"]


def makespan_bound(instance: Instance, micro_batches: int) -> Fraction:
    """A lower bound on the makespan of ``micro_batches`` micro-batches, in ticks."""
    earliest, tail = _heads(instance), _tails(instance)
    bounds = [Fraction(_chain(instance, micro_batches, tail))]
    for on in instance.blocks_on:
        runs = [(earliest[i], instance.durations[i], tail[i]) for i in on]
        bounds.append(Fraction(_one_at_a_time(runs, micro_batches)))
    for link in range(len(instance.problem.links)):
        carried = [arc for arc in instance.arcs if arc.link == link]
        distance = max((arc.distance for arc in carried), default=0)
        runs = [(earliest[arc.source] + instance.durations[arc.source], arc.lag, 0) for arc in carried]
        bounds.append(Fraction(_one_at_a_time(runs, max(0, micro_batches - distance))))
    lags = _one_micro_batch(instance)
    for device in range(len(instance.capacity)):
        held = _least_held(instance, device, lags)
        if held is None:
            continue
        takers = [i for i in instance.blocks_on[device] if instance.take[device][i] > 0]
        givers = [i for i in instance.blocks_on[device]
                  if instance.change[device][i] < 0 or instance.take[device][i] > max(0, instance.change[device][i])]
        bounds.append(min(earliest[i] for i in takers) + held * micro_batches + min(tail[i] for i in givers))
    return max(bounds)


def steady_bound(instance: Instance) -> Fraction:
    """A lower bound on the time per micro-batch of any steady state, however many micro-batches a period has."""
    lags = _one_micro_batch(instance)
    held = (_least_held(instance, device, lags) for device in range(len(instance.capacity)))
    return max([Fraction(instance.heaviest_load), *(share for share in held if share is not None)])


def _one_micro_batch(instance: Instance) -> Lags:
    """Longest chains within one micro-batch: a period so long that nothing reaches into the next one."""
    horizon = sum(instance.durations) + sum(arc.lag for arc in instance.arcs) + 1
    lags = longest_paths(instance, horizon)
    if lags is None:
        raise AssertionError("one micro-batch's dependencies have a cycle")
    return lags


def _least_held(instance: Instance, device: int, lags: Lags) -> Fraction | None:
    """Ticks at full capacity that one micro-batch is worth on ``device``; None where memory bounds nothing."""
    capacity = instance.capacity[device]
    lifetimes = least_lifetimes(instance, device, lags) if capacity and instance.limited(device) else None
    if not capacity or lifetimes is None or any(life < 0 for _, _, _, life in lifetimes.held):
        return None
    return Fraction(lifetimes.workspace + sum(life * amount for _, _, amount, life in lifetimes.held), capacity)


def _one_at_a_time(runs: list[tuple[int, int, int]], times: int) -> int:
    """max over heads e and tails t of e + times * sum(durations of runs with head >= e, tail >= t) + t."""
    best = 0
    for e in {head for head, _, _ in runs}:
        for t in {tail for _, _, tail in runs}:
            chosen = [(head, duration, tail) for head, duration, tail in runs if head >= e and tail >= t]
            if chosen and times:
                best = max(best, e + times * sum(duration for _, duration, _ in chosen) + t)
    return best


def _heads(instance: Instance) -> list[int]:
    head = [0] * len(instance.durations)
    for i in instance.problem.topological_order:
        for arc in instance.arcs:
            if arc.target == i and arc.distance == 0:
                head[i] = max(head[i], head[arc.source] + instance.durations[arc.source] + arc.lag)
    return head


def _tails(instance: Instance) -> list[int]:
    tail = [0] * len(instance.durations)
    for i in reversed(instance.problem.topological_order):
        for arc in instance.arcs:
            if arc.source == i and arc.distance == 0:
                tail[i] = max(tail[i], arc.lag + instance.durations[arc.target] + tail[arc.target])
    return tail


def _chain(instance: Instance, micro_batches: int, tail: list[int]) -> int:
    waits: list[list[tuple[int, int, int]]] = [[] for _ in instance.blocks]
    for arc in instance.arcs:
        waits[arc.target].append((arc.source, arc.lag, arc.distance))
    deepest = max((arc.distance for arc in instance.arcs), default=0) + 1
    recent: list[list[int]] = []  # ends per block, newest micro-batch last
    for _ in range(micro_batches):
        ends = [0] * len(instance.durations)
        for i in instance.problem.topological_order:
            start = recent[-1][i] if recent else 0
            for source, lag, distance in waits[i]:
                if distance == 0:
                    start = max(start, ends[source] + lag)
                elif distance <= len(recent):
                    start = max(start, recent[-distance][source] + lag)
            ends[i] = start + instance.durations[i]
        recent = [*recent[-deepest:], ends]
    return max(end + rest for end, rest in zip(recent[-1], tail, strict=True))
