"""Least distances: the implications of a period before any search, and periods refuted by them.

For a period T they are a matrix D (Rau's MinDist) with t_j - t_i >= D[i, j] for the absolute starts t of any periodic
schedule of that period, one micro-batch per period. It starts from the dependencies (D[i, j] = d_i + lag - distance *
T) and is closed under three arguments until nothing changes:

* *Paths*: t_j - t_i >= D[i, k] + D[k, j].
* *Circular no-overlap*: two blocks i, j of one device never overlap in any period, so (t_j - t_i) mod T lies in
  [d_i, T - d_j], T standing for 0 too; a lower bound on t_j - t_i rises to the next such value.
* *Memory as Little's law*: averaged over a period, the level of a device is the sum over its activations of amount x
  lifetime / T, from the taker's start to the giver's end; the average is at most the peak, hence at most the capacity.
  The same is true of a pool of a device and its lanes. The slack that the known least lifetimes leave in that
  inequality limits every single lifetime from above, which is a lower bound on a lag backwards.

* *Depth*: no schedule needs blocks further apart than :func:`lag_range` periods.

A positive cycle (D[i, i] > 0) or negative slack refutes T. Feasibility is monotone in T (idle time can be inserted
at the cycle boundary), so a refuted T refutes every shorter one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt

import numpy as np
import numpy.typing as npt

from weft.solver.control.clock import checked, checkpoint
from weft.solver.late import nx
from weft.solver.ticks import TickProblem

Distances = npt.NDArray[np.int64]

#: Entry of a pair without a known distance.
UNRELATED = -(2**60)

_MOST_ROUNDS = 50


def least_distances(instance: TickProblem, period: int) -> Distances | None:
    """The closed lag matrix (blocks x blocks, ticks) for ``period``, or None if ``period`` is refuted.

    Stopping early keeps the matrix valid, only weaker: rounds are limited.
    """
    lags = dependencies_only(instance, period)
    if lags is None:
        return None
    pairs = [(i, j) for a, b in instance.shared_pairs() for i, j in ((a, b), (b, a))]
    for _ in range(_MOST_ROUNDS):
        checkpoint()
        before = lags.copy()
        if not (_round_to_no_overlap(instance, period, pairs, lags) and _limit_lifetimes(instance, period, lags)):
            return None
        if np.array_equal(before, lags):
            break
    return lags


def dependencies_only(instance: TickProblem, period: int) -> Distances | None:
    """Least distances by load, dependencies and the range of shifts alone: :func:`least_distances` starts from them."""
    if period < instance.heaviest_load:
        return None
    return longest_paths(instance, period, -(lag_range(instance, period) + 1) * period)


def least_open_period(instance: TickProblem, upper: int) -> int:
    """The least period in [heaviest load, ``upper``] that bisection on least distances does not refute.

    It is a lower bound on the period of every one-micro-batch periodic schedule if ``upper`` is feasible.
    """
    low, high = instance.heaviest_load, upper  # low - 1 is refuted, high is not
    while low < high:
        middle = isqrt(low * high)
        if least_distances(instance, middle) is None:
            low = middle + 1
        else:
            high = middle
    return low


def lag_range(instance: TickProblem, period: int) -> int:
    """No schedule needs two blocks' lags k to differ by more than this.

    Sort the blocks by lag. Between neighbours with a gap wider than the longest dependency (a block may wrap, and a
    transfer lasts ceil(c / T) periods more) all later blocks can move one period earlier: no dependency breaks, the
    order within the period stays, and memory is occupied for a shorter time if no part of a micro-batch gives back more
    than the part before it took (:func:`takes_before_giving`).
    """
    longest = max((-(-arc.lag // period) + arc.distance for arc in instance.arcs), default=0)
    return (len(instance.durations) - 1) * (longest + 2) + 1


def takes_before_giving(instance: TickProblem) -> bool:
    """Whether dependencies alone ensure that everything given back was taken before, wherever memory is limited."""
    lags = _within(instance)
    if lags is None:
        return False
    limited = [instance.change[device] for device in instance.distinct_devices if instance.limited(device)]
    return (all(_matching(instance, change, _in_turn(change, lags)) is not None for change in limited)
            and all(_is_taken_first(pool.change, lags) and pool.balanced for pool in instance.mixed_pools))


def never_gives_first(instance: TickProblem) -> bool:
    """Whether no part of a micro-batch that dependencies let run alone leaves the level of a device with limited memory
    below its level before it."""
    lags = _within(instance)
    return lags is not None and all(_is_taken_first(instance.change[device], lags)
                                    for device in instance.distinct_devices if instance.limited(device))


def pools_take_first(instance: TickProblem) -> bool:
    """Whether the same is true of the mixed pools, where some memory may never be given back: then orders and waits
    determine their levels (:mod:`weft.solver.pools`)."""
    lags = _within(instance) if instance.mixed_pools else None
    if lags is None:
        return not instance.mixed_pools
    return all(_is_taken_first(pool.change, lags) for pool in instance.mixed_pools)


def _is_taken_first(change: Mapping[int, int], lags: Distances) -> bool:
    """Whether some split of takes among gives covers all gives, each by takers that it follows: by a flow."""
    network: nx.DiGraph[int | str] = nx.DiGraph()
    network.add_nodes_from(("source", "sink"))
    for i, amount in change.items():
        if amount > 0:
            network.add_edge("source", i, capacity=amount)
        elif amount < 0:
            network.add_edge(i, "sink", capacity=-amount)
    network.add_edges_from((taker, giver) for _, taker, giver in _in_turn(change, lags))  # unlimited
    return bool(nx.maximum_flow_value(network, "source", "sink") == -sum(min(amount, 0) for amount in change.values()))


def _within(instance: TickProblem) -> Distances | None:
    """Distances by dependencies, those within a micro-batch from 0 up and all others below."""
    return longest_paths(instance, sum(instance.durations) + sum(arc.lag for arc in instance.arcs) + 1)


def _in_turn(change: Mapping[int, int], lags: Distances) -> list[tuple[int, int, int]]:
    """``(lag, taker, giver)`` where the giver follows its taker within a micro-batch, which has a lag from 0 up."""
    return sorted(pair for pair in _lives(change, lags) if pair[0] >= 0)


def longest_paths(instance: TickProblem, period: int, unrelated: int = UNRELATED) -> Distances | None:
    """Distances implied by the dependencies alone for ``period``; None if they contradict it (a positive cycle)."""
    n = len(instance.durations)
    within: list[list[tuple[int, int]]] = [[] for _ in range(n)]  # per target, of one micro-batch: source and lag
    across = []
    for arc in instance.arcs:
        lag = instance.durations[arc.source] + arc.lag - arc.distance * period
        if arc.distance:
            across.append((arc.source, arc.target, lag))
        else:
            within[arc.target].append((arc.source, lag))
    to = np.full((n, n), UNRELATED, dtype=np.int64)  # to[j, i]: lag from i to j, so that a target's lags are contiguous
    np.fill_diagonal(to, 0)
    for j in checked(instance.problem.topological_order, 64):
        for i, lag in within[j]:
            np.maximum(to[j], to[i] + lag, out=to[j])
    lags = np.ascontiguousarray(to.T)
    for i, j, lag in checked(across):
        if not _raise(lags, i, j, lag):
            return None
    if unrelated > UNRELATED:  # no path needs two of these jumps: each costs more than all lags together
        np.maximum(lags, lags.max(axis=1)[:, None] + lags.max(axis=0)[None, :] + unrelated, out=lags)
    return None if np.any(np.diagonal(lags) > 0) else lags


def _raise(lags: Distances, i: int, j: int, lag: int) -> bool:
    """Learn t_j - t_i >= lag and close over paths through it; False on a positive cycle."""
    if lag <= lags[i, j]:
        return True
    if lags[j, i] > UNRELATED // 2 and lag + lags[j, i] > 0:
        return False
    # A path through the new lag helps only from where it improves the way to j, and to where it improves that from i.
    rows = np.flatnonzero(lags[:, i] + lag > lags[:, j])
    columns = np.flatnonzero(lag + lags[j] > lags[i])
    improved = np.ix_(rows, columns)
    lags[improved] = np.maximum(lags[improved], lags[rows, i, None] + (lags[None, j, columns] + lag))
    return True


def _round_to_no_overlap(instance: TickProblem, period: int, pairs: list[tuple[int, int]], lags: Distances) -> bool:
    durations = instance.durations
    # Long lags contain short ones: a round covers most of it.
    for i, j in checked(sorted(pairs, key=lambda pair: lags[pair]), 64):
        lag = int(lags[i, j])
        if lag < UNRELATED // 2:
            continue
        rest = lag % period
        if rest < durations[i]:
            if rest or durations[j]:  # a block without duration may stand right before i, a whole period after it
                lag += durations[i] - rest
        elif rest > period - durations[j]:
            lag += period - rest + durations[i]
        if not _raise(lags, i, j, lag):
            return False
    return True


def _limit_lifetimes(instance: TickProblem, period: int, lags: Distances) -> bool:
    limited = [(instance.take[d], instance.change[d], capacity) for d in instance.distinct_devices
               if (capacity := instance.capacity[d]) is not None and instance.limited(d)]
    pools = [(pool.take, pool.change, pool.capacity) for pool in instance.mixed_pools]
    for take, change, capacity in (*limited, *pools):
        lifetimes = lifetimes_in(instance, take, change, lags)
        if lifetimes is None:
            continue
        slack = capacity * period - lifetimes.workspace - _total(lifetimes.held)
        if slack < 0:
            return False
        for taker, giver, amount, life in checked(lifetimes.held, 64):
            longest = life - instance.durations[giver] + slack // amount
            if not _raise(lags, giver, taker, -longest):
                return False
    return True


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """The least memory of one micro-batch on a device: ``workspace`` (amount x ticks) and, per taker and giver,
    ``(taker, giver, amount, least ticks from the taker's start to the giver's end)``."""

    workspace: int
    held: list[tuple[int, int, int, int]]


def least_lifetimes(instance: TickProblem, device: int, lags: Distances) -> Lifetimes | None:
    """The amount that each taker takes, split among givers, with least lifetimes; None if some lifetime has no known
    least.

    Every split of takes among gives has the same total lifetime, so any is valid; longest first tends to be the
    tightest.
    """
    return lifetimes_in(instance, instance.take[device], instance.change[device], lags)


def lifetimes_in(instance: TickProblem, take: Mapping[int, int], change: Mapping[int, int],
                 lags: Distances) -> Lifetimes | None:
    """Like :func:`least_lifetimes`, for the given amounts that blocks take and change: those of a device, or of a mixed
    pool, as averages do not depend on the order."""
    pairs = sorted(_lives(change, lags), key=lambda pair: (-pair[0], pair[1], pair[2]))
    held = _matching(instance, change, pairs)
    for least in (0, UNRELATED // 2) if held is None or any(life < 0 for _, _, _, life in held) else ():
        # Those first that have the fewest givers after them: several micro-batches, each with its own givers, are one
        # after another, so that the longest lags are those between different ones.
        known = [pair for pair in pairs if pair[0] >= least]
        givers = Counter(taker for _, taker, _ in known)
        other = _matching(instance, change, sorted(known, key=lambda pair: givers[pair[1]]))
        if other is not None and (held is None or _total(other) > _total(held)):
            held = other
    if held is None:
        return None
    return Lifetimes(sum((take[i] - max(change[i], 0)) * instance.durations[i] for i in take), held)


def _total(held: list[tuple[int, int, int, int]]) -> int:
    return sum(amount * life for _, _, amount, life in held)


def _lives(change: Mapping[int, int], lags: Distances) -> list[tuple[int, int, int]]:
    """``(lag, taker, giver)`` of every pair in one memory."""
    return [(int(lags[taker, giver]), taker, giver)
            for taker in checked(change, 16) if change[taker] > 0 for giver in change if change[giver] < 0]


def _matching(instance: TickProblem, change: Mapping[int, int],
              pairs: list[tuple[int, int, int]]) -> list[tuple[int, int, int, int]] | None:
    """All takes split among all gives, pair after pair; None if the pairs leave some over or a lag is unknown."""
    left = dict(change)
    held = []
    for lag, taker, giver in pairs:
        amount = min(left[taker], -left[giver])
        if amount <= 0:
            continue
        if lag < UNRELATED // 2:
            return None
        left[taker] -= amount
        left[giver] += amount
        held.append((taker, giver, amount, lag + instance.durations[giver]))
    return None if any(left.values()) else held
