"""A problem in whole numbers, as the search sees it: ticks of time, units of memory, blocks by index.

Times become ticks. Decimal durations (as profiles and people write them) are represented exactly as long as that takes
no more than about 2**36 ticks for one micro-batch; otherwise they are rounded *up* to a tick, so that any order found
is feasible in real time. :meth:`TickProblem.bound` corrects bounds for this, by the smaller of two corrections:

* By share. ``inflation`` is the largest share by which an amount grew. Scaling a real schedule by it gives one that
  fits the rounded amounts, hence ``bound(rounded) / inflation <= optimum(real)``.
* By sum. Keep the order of a real schedule and time it with the rounded amounts. Its makespan is the longest path, and
  a path meets every operation and every transfer at most once: it grows by no more than the total rounding in N
  micro-batches, ``N * loss`` ticks, hence ``bound(rounded) - N * loss <= optimum(real)``. The time per micro-batch of a
  steady state is the largest ratio of length to periods passed over the cycles of one period's operations; a simple
  cycle meets each of them once and passes at least one period, so it grows by no more than ``loss`` a micro-batch.

A tiny amount, multiplied by a tick, spoils the first but not the second, where it is a few ticks at most.

For the latency of one micro-batch at a period P the second is as follows. Stretch time: right before an operation ends
or a transfer arrives, insert the amount it was rounded up by. Every period gets ``loss`` ticks longer. Everything lasts
at least as long as rounded and keeps its order, so there is a schedule of the rounded amounts with the period P +
``loss``; a latency L contains the ends of at most L / P + 2 periods: it becomes L + (L / P + 2) ``loss`` at most.
Memory is always exact.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property
from typing import Any, TypeVar

from weft.solver.pools import MixedPool, amounts_by_device, mixed_pools
from weft.solver.problem import Number, Problem, ProblemError
from weft.solver.values import exact

#: Ticks, or the problem's own numbers.
Value = TypeVar("Value", int, float)

_MOST_TICKS = 2**36
_MOST_MEMORY = 2**52


@dataclass(frozen=True, slots=True)
class Arc:
    """``target`` of micro-batch m starts at least ``lag`` ticks after ``source`` of micro-batch m - distance ended.

    ``link`` is the index of the link that the transfer occupies, if any.
    """

    source: int
    target: int
    lag: int
    distance: int
    link: int | None = None


@dataclass(frozen=True)
class TickProblem:
    """The integer view of ``problem``.

    ``take[d][i]`` is the amount that block i takes on device d when it starts (workspace included), ``change[d][i]``
    its change of the level once it has ended; both have only the device's blocks. ``capacity[d]`` is None for
    unlimited. A limited memory that a device shares with its lanes is listed if one order determines it: under the
    engine that runs all blocks that take or give. If there is no such engine it is one of ``mixed_pools``, which hang
    on times, and these three omit it: with fewer constraints, a bound or a proof of theirs remains valid for every
    schedule that keeps the pools too; a new schedule or steady state must be checked against the pools by its source.
    ``tick`` is the length of a tick in the problem's time unit, ``inflation`` and ``loss`` (ticks for one micro-batch)
    the increase by rounding to it, ``memory_unit`` the size of one unit of the amounts here in the problem's.
    """

    problem: Problem
    durations: tuple[int, ...]
    arcs: tuple[Arc, ...]
    take: tuple[dict[int, int], ...]
    change: tuple[dict[int, int], ...]
    capacity: tuple[int | None, ...]
    tick: Fraction
    inflation: Fraction
    loss: Fraction
    memory_unit: Fraction
    mixed_pools: tuple[MixedPool, ...] = ()

    @classmethod
    def of(cls, problem: Problem) -> TickProblem:
        """Raises :class:`ProblemError` if memory amounts have too many digits to add them exactly, and for a problem
        that is not plain."""
        problem.require_plain()
        dependencies = list(problem.dependencies())
        lags = [dependency.lag for _, _, dependency in dependencies]
        tick, inflation, loss = _tick([block.duration for block in problem.blocks], lags)
        links = {link.name: i for i, link in enumerate(problem.links)}
        unit = _memory_unit(problem)

        @cache
        def scaled(amount: Number) -> int:  # every amount is a whole number of units
            return int(exact(amount) / unit)

        def room(memory: Number) -> int:
            return math.floor(exact(memory) / unit)

        take, change, capacity = amounts_by_device(problem, scaled, room)
        return cls(
            problem=problem,
            durations=tuple(math.ceil(exact(block.duration) / tick) for block in problem.blocks),
            arcs=tuple(Arc(i, j, math.ceil(exact(dependency.lag) / tick), dependency.distance,
                           None if dependency.link is None else links[dependency.link])
                       for i, j, dependency in dependencies),
            take=take,
            change=change,
            capacity=capacity,
            tick=tick,
            inflation=inflation,
            loss=loss,
            memory_unit=unit,
            mixed_pools=mixed_pools(problem, scaled, room) if problem.has_lanes else (),
        )

    @cached_property
    def in_sequence(self) -> TickProblem:
        """The constraints if no two blocks run at once: a pool is then one device, its owner, and none is mixed.

        This instance has a schedule exactly if that one has: put the operations of a schedule one after the other by
        start; then at each start no more operations have started than before, and all of those have ended.
        """
        if not self.problem.has_lanes:
            return self
        take, change, capacity = list(self.take), list(self.change), list(self.capacity)
        for lane, owner in enumerate(self.problem.pool_of):
            if capacity[lane] is not None:
                take[lane], take[owner] = take[owner], take[lane]
                change[lane], change[owner] = change[owner], change[lane]
                capacity[lane], capacity[owner] = capacity[owner], capacity[lane]
        for pool in self.mixed_pools:
            take[pool.owner], change[pool.owner] = dict(pool.take), dict(pool.change)
            capacity[pool.owner] = pool.capacity
        return replace(self, take=tuple(take), change=tuple(change), capacity=tuple(capacity), mixed_pools=())

    @cached_property
    def distinct_devices(self) -> tuple[int, ...]:
        """The devices, without those that repeat the blocks and the memory of an earlier one: a statement about one is
        true of all."""
        known: dict[object, int] = {}
        for device, (capacity, take, change) in enumerate(zip(self.capacity, self.take, self.change, strict=True)):
            known.setdefault((capacity, tuple(take.items()), tuple(change.values())), device)
        return tuple(known.values())

    @property
    def blocks(self) -> range:
        """Indices of the blocks."""
        return range(len(self.durations))

    @property
    def blocks_on(self) -> tuple[tuple[int, ...], ...]:
        """Per device, the indices of its blocks."""
        return self.problem.blocks_on

    def load(self, device: int) -> int:
        """Ticks for which one micro-batch keeps ``device`` busy."""
        return sum(self.durations[i] for i in self.blocks_on[device])

    @property
    def heaviest_load(self) -> int:
        """Ticks for which one micro-batch keeps the busiest device or link busy: no period is shorter."""
        links = [0] * len(self.problem.links)
        for arc in self.arcs:
            if arc.link is not None:
                links[arc.link] += arc.lag
        return max([*(self.load(d) for d in self.distinct_devices), *links])

    def limited(self, device: int) -> bool:
        """Whether the device's capacity can be exceeded by the remainder of one micro-batch or the sum over all of
        them."""
        return self.capacity[device] is not None and any(self.take[device].values())

    @property
    def balanced(self) -> bool:
        """Whether every micro-batch gives back all it took of each limited memory, mixed pools included: otherwise
        there is no steady state."""
        return (all(sum(self.change[d].values()) == 0 for d in self.distinct_devices if self.limited(d))
                and all(pool.balanced for pool in self.mixed_pools))

    def shared_pairs(self) -> list[tuple[int, int]]:
        """Pairs i < j of blocks that have a device in common, hence never overlap."""
        return sorted({(i, j) for on in set(self.blocks_on) for i in on for j in on if i < j})

    def refined(self, factor: int) -> TickProblem:
        """The same instance with ticks ``factor`` times shorter."""
        return replace(
            self,
            durations=tuple(duration * factor for duration in self.durations),
            arcs=tuple(replace(arc, lag=arc.lag * factor) for arc in self.arcs),
            tick=self.tick / factor,
            loss=self.loss * factor,
        )

    def time(self, ticks: int | Fraction) -> float:
        """``ticks`` in the problem's time unit."""
        return float(ticks * self.tick)

    @cached_property
    def heads_and_tails(self) -> tuple[list[int], list[int]]:
        """:func:`heads_and_tails` in ticks."""
        return heads_and_tails(self.problem, self.durations, [arc.lag for arc in self.arcs])

    def bound(self, ticks: int | Fraction, micro_batches: int) -> float:
        """A lower bound in ticks as one on real time, rounded down by no more than float precision.

        ``micro_batches``: their number if it bounds a makespan; 1 if it bounds the time per micro-batch of a steady
        state.
        """
        return float(max(ticks / self.inflation, ticks - micro_batches * self.loss, Fraction(0)) * self.tick)

    @property
    def _by_sum(self) -> bool:
        """Whether latencies are bounded by the sum of the rounding; the same for all periods of an instance."""
        return self.loss < (self.inflation - 1) * self.heaviest_load

    def loosened(self, period: Fraction) -> Fraction:
        """A limit in ticks on the period of rounded schedules that corresponds to at most ``period`` ticks for real
        ones."""
        return period + self.loss if self._by_sum else period * self.inflation

    def latency_bound(self, ticks: int | Fraction, least: Fraction) -> Fraction:
        """A lower bound on the latency of rounded schedules with periods up to :meth:`loosened` of a limit, in ticks,
        as one on that of real schedules with periods from ``least`` ticks to it, in the problem's time unit."""
        if not self._by_sum:
            return ticks / self.inflation * self.tick
        if least <= 0:  # rounding adds as much as a period may take: no bound
            return Fraction(0)
        return max((ticks - 2 * self.loss) / (1 + self.loss / least), Fraction(0)) * self.tick


def in_whole_numbers(values: Sequence[Number]) -> tuple[list[int], Fraction]:
    """``values``, the decimal numbers that were written, as multiples of one unit, and that unit."""
    written = [exact(value) for value in values]
    unit = _common_unit(value for value in written if value)
    return [int(value / unit) for value in written], unit


def _tick(durations: Sequence[Number], lags: Sequence[Number]) -> tuple[Fraction, Fraction, Fraction]:
    """The tick, by which share at most an amount grows when it is rounded up to ticks, and by how many all do."""
    amounts = [exact(value) for value in (*durations, *lags) if value]
    unit = _common_unit(amounts)
    total = sum(amounts, Fraction(0))
    if total / unit <= _MOST_TICKS:
        return unit, Fraction(1), Fraction(0)
    tick = total / _MOST_TICKS
    rounded = [math.ceil(amount / tick) for amount in amounts]
    share = max(ticks * tick / amount for ticks, amount in zip(rounded, amounts, strict=True))
    return tick, share, sum(rounded) - total / tick


def _memory_unit(problem: Problem) -> Fraction:
    counted = Counter(amount for block in problem.blocks for amount in (*block.memory, *block.workspace) if amount)
    if not counted:
        return Fraction(1)
    amounts = {exact(amount): times for amount, times in counted.items()}
    unit = _common_unit(amounts)  # capacities are rounded down to it, which excludes nothing
    largest = max(sum((abs(amount) * times for amount, times in amounts.items()), Fraction(0)),
                  *(exact(device.memory) for device in problem.devices if device.memory is not None), Fraction(0))
    if largest / unit > _MOST_MEMORY:
        raise ProblemError("the blocks' memory amounts have more digits than can be added exactly; "
                           "round them to at most 12 significant digits")
    return unit


def _common_unit(amounts: Iterable[Fraction]) -> Fraction:
    """The largest unit of which every amount is a whole multiple."""
    numerator, denominator = 0, 1
    for amount in amounts:
        common = math.lcm(denominator, amount.denominator)
        numerator = math.gcd(numerator * (common // denominator), amount.numerator * (common // amount.denominator))
        denominator = common
    return Fraction(numerator or 1, denominator)


def heads_and_tails(problem: Problem, durations: Sequence[Value] | None = None, lags: Sequence[Value] | None = None
                    ) -> tuple[list[Value], list[Value]]:
    """For each block the longest chain of blocks and transfers of its own micro-batch that leads to its start, and the
    longest one after its end. ``durations`` of blocks and ``lags`` of dependencies are in file order; the default is
    the problem's own."""
    length: Sequence[Any] = [block.duration for block in problem.blocks] if durations is None else durations
    waits = [(producer, consumer, dependency.lag if lags is None else lags[number])
             for number, (producer, consumer, dependency) in enumerate(problem.dependencies())
             if not dependency.distance]
    into: list[list[tuple[int, Any]]] = [[] for _ in length]
    for producer, consumer, lag in waits:
        into[consumer].append((producer, lag))
    head: list[Any] = [0] * len(length)
    tail: list[Any] = [0] * len(length)
    for i in problem.topological_order:
        head[i] = max((head[before] + length[before] + lag for before, lag in into[i]), default=0)
    for i in reversed(problem.topological_order):
        for before, lag in into[i]:
            tail[before] = max(tail[before], tail[i] + length[i] + lag)
    return head, tail
