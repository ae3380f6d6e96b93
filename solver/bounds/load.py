"""The least makespan by each device's work alone, and the work that must come before and after it: a bound at the cost
of a look at each block.

No block of a device starts before the longest chain of blocks of its micro-batch that lead to it, and after the last
one ends at least the shortest of the chains that follow must run; in between the device runs all micro-batches of all
its blocks. If some blocks run on every device, time is split into theirs and the rest, in which they take none
(:func:`weft.solver.relations.graph.without_barriers` has the argument). Memory and order do not count here: the bound
is to discard most of many problems without a search, and for times for which ticks are too coarse.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from weft.solver.problem import Number, Problem
from weft.solver.ticks import TickProblem, heads_and_tails, in_whole_numbers

#: Floats are added up here: the stated bound is lower by this share.
_ROUNDING = 1e-9


def load_bound(problem: Problem, micro_batches: int) -> float:
    """A lower bound on the makespan of ``micro_batches`` micro-batches, in the problem's time unit."""
    lags = [dependency.lag for _, _, dependency in problem.dependencies()]
    found = _bound(problem, micro_batches, [float(block.duration) for block in problem.blocks], lags)
    return float(found) * (1 - _ROUNDING)


def work_alone(problem: Problem, micro_batches: int) -> float:
    """The work of the busiest device for ``micro_batches`` micro-batches: a lower bound on their span, and for one on
    the time per micro-batch of a steady state; in the problem's time unit."""
    load = max(sum(float(problem.blocks[i].duration) for i in on) for on in problem.blocks_on)
    return micro_batches * load * (1 - _ROUNDING)


def exact_load_bound(problem: Problem, micro_batches: int) -> Fraction:
    """The same, with the times as they are written, however far apart they are."""
    durations, lags, unit = _whole(problem)
    return Fraction(_bound(problem, micro_batches, durations, lags)) * unit


def exact_load(problem: Problem) -> Fraction:
    """The time for which one micro-batch keeps the busiest device or link busy: a lower bound on every steady state's
    time for each."""
    durations, lags, unit = _whole(problem)
    carried = dict.fromkeys(problem.links_by_name, 0)
    for (_, _, dependency), lag in zip(problem.dependencies(), lags, strict=True):
        if dependency.link is not None:
            carried[dependency.link] += lag
    return max(*(sum(durations[i] for i in on) for on in problem.blocks_on), *carried.values(), 0) * unit


def _whole(problem: Problem) -> tuple[list[int], list[int], Fraction]:
    """Durations and lags as exact whole numbers of a unit."""
    lags = [dependency.lag for _, _, dependency in problem.dependencies()]
    numbers, unit = in_whole_numbers([*(block.duration for block in problem.blocks), *lags])
    return numbers[:len(problem.blocks)], numbers[len(problem.blocks):], unit


def _bound(problem: Problem, micro_batches: int, durations: Sequence[Number], lags: Sequence[Number]) -> Number:
    used = {d for block in problem.blocks for d in block.devices}
    common = {i for i, block in enumerate(problem.blocks) if len(used) > 1 and used <= set(block.devices)}
    bound = _busiest(problem, micro_batches, durations, lags)
    if common:
        rest = [0 if i in common else duration for i, duration in enumerate(durations)]
        cut = sum(durations[i] for i in common)
        bound = max(bound, micro_batches * cut + _busiest(problem, micro_batches, rest, [0] * len(lags)))
    return bound


def work_bound(instance: TickProblem, micro_batches: int) -> int:
    """A lower bound on the makespan of ``micro_batches`` micro-batches, in ticks: the same without the cut for
    blocks on every device, in whole numbers."""
    return int(_busiest(instance.problem, micro_batches, instance.durations, [arc.lag for arc in instance.arcs]))


def _busiest(problem: Problem, micro_batches: int, length: Sequence[Number], lags: Sequence[Number]) -> Number:
    """The bound by the busiest device."""
    head, tail = heads_and_tails(problem, length, lags)
    bound = max((head[i] + length[i] + tail[i] for i in range(len(length))), default=0)
    for blocks in problem.blocks_on:
        timed = [i for i in blocks if length[i]]
        if timed:
            bound = max(bound, min(head[i] for i in timed) + micro_batches * sum(length[i] for i in timed)
                        + min(tail[i] for i in timed))
    return bound
