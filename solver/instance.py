"""A problem in whole numbers, as the search sees it: ticks of time, units of memory, blocks by index.

Times become ticks. Decimal durations (what profiles and people write) are represented exactly as long as that takes
no more than about 2**36 ticks for one micro-batch; otherwise they are rounded *up* to a tick, so that any order
found is feasible in real time, and ``inflation`` says by how much at most: scaling a real schedule by ``inflation``
gives one that fits the rounded durations, hence ``bound(rounded) / inflation <= optimum(real)``.
Memory is always exact.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property

from solver.problem import Number, Problem, ProblemError

__all__ = ["Arc", "Instance"]

_MOST_TICKS = 2**36
_MOST_MEMORY = 2**52


@dataclass(frozen=True, slots=True)
class Arc:
    """``target`` of micro-batch m waits for ``source`` of micro-batch m - distance, then ``lag`` ticks.

    ``link`` is the index of the link that the transfer occupies, if any.
    """

    source: int
    target: int
    lag: int
    distance: int
    link: int | None


@dataclass(frozen=True)
class Instance:
    """The integer view of ``problem``.

    ``take[d][i]`` is what block i takes on device d when it starts (workspace included), ``change[d][i]`` by how
    much it has changed the level once it has ended; both hold only the device's blocks. ``capacity[d]`` is None
    where unlimited. ``tick`` is the length of a tick in the problem's time unit, ``memory_unit`` what one unit of
    the amounts here is in the problem's.
    """

    problem: Problem
    durations: tuple[int, ...]
    arcs: tuple[Arc, ...]
    take: tuple[dict[int, int], ...]
    change: tuple[dict[int, int], ...]
    capacity: tuple[int | None, ...]
    tick: Fraction
    inflation: Fraction
    memory_unit: Fraction

    @classmethod
    def of(cls, problem: Problem) -> Instance:
        """Raises :class:`ProblemError` if memory amounts have too many digits to add them exactly."""
        dependencies = list(problem.dependencies())
        lags = [dependency.lag for _, _, dependency in dependencies]
        tick, inflation = _tick([block.duration for block in problem.blocks], lags)
        links = {link.name: i for i, link in enumerate(problem.links)}
        unit = _memory_unit(problem)

        @cache
        def scaled(amount: Number) -> int:  # every amount is a whole number of units
            return int(_exact(amount) / unit)

        return cls(
            problem=problem,
            durations=tuple(math.ceil(_exact(block.duration) / tick) for block in problem.blocks),
            arcs=tuple(Arc(i, j, math.ceil(_exact(dependency.lag) / tick), dependency.distance,
                           None if dependency.link is None else links[dependency.link])
                       for i, j, dependency in dependencies),
            take=tuple({i: scaled(max(problem.blocks[i].memory[place], 0)) + scaled(problem.blocks[i].workspace[place])
                        for i, place in places.items()} for places in problem.places_on),
            change=tuple({i: scaled(problem.blocks[i].memory[place]) for i, place in places.items()}
                         for places in problem.places_on),
            capacity=tuple(None if device.memory is None else math.floor(_exact(device.memory) / unit)
                           for device in problem.devices),
            tick=tick,
            inflation=inflation,
            memory_unit=unit,
        )

    @cached_property
    def distinct_devices(self) -> tuple[int, ...]:
        """The devices, of those that run the same blocks in the same memory the first only: what is true of one is true
        of all."""
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
        """Ticks one micro-batch keeps ``device`` busy."""
        return sum(self.durations[i] for i in self.blocks_on[device])

    def link_load(self, link: int) -> int:
        """Ticks one micro-batch keeps ``link`` busy."""
        return sum(arc.lag for arc in self.arcs if arc.link == link)

    @property
    def heaviest_load(self) -> int:
        """Ticks one micro-batch keeps the busiest device or link busy: no period is shorter."""
        links = [0] * len(self.problem.links)
        for arc in self.arcs:
            if arc.link is not None:
                links[arc.link] += arc.lag
        return max([*(self.load(d) for d in self.distinct_devices), *links])

    def limited(self, device: int) -> bool:
        """Whether the device's capacity can be exceeded by what one micro-batch leaves or all of them pile up."""
        return self.capacity[device] is not None and any(self.take[device].values())

    @property
    def balanced(self) -> bool:
        """Whether every micro-batch gives back all it took where memory is limited: else there is no steady state."""
        return all(sum(self.change[d].values()) == 0 for d in self.distinct_devices if self.limited(d))

    def shared_pairs(self) -> list[tuple[int, int]]:
        """Pairs i < j of blocks that have a device in common, hence never overlap."""
        return sorted({(i, j) for on in set(self.blocks_on) for i in on for j in on if i < j})

    def refined(self, factor: int) -> Instance:
        """The same instance with ticks ``factor`` times shorter."""
        return replace(
            self,
            durations=tuple(duration * factor for duration in self.durations),
            arcs=tuple(replace(arc, lag=arc.lag * factor) for arc in self.arcs),
            tick=self.tick / factor,
        )

    def time(self, ticks: int | Fraction) -> float:
        """``ticks`` in the problem's time unit."""
        return float(ticks * self.tick)

    def bound(self, ticks: int | Fraction) -> float:
        """A lower bound in ticks as a lower bound on real time, rounded down by no more than float precision."""
        return float(ticks * self.tick / self.inflation)


def _exact(value: Number) -> Fraction:
    """The decimal number that was written: 0.1 is one tenth, not the binary float next to it."""
    return Fraction(str(value))


def _tick(durations: Sequence[Number], lags: Sequence[Number]) -> tuple[Fraction, Fraction]:
    amounts = [_exact(value) for value in (*durations, *lags) if value]
    exact = _common_unit(amounts)
    total = sum(amounts, Fraction(0))
    if total / exact <= _MOST_TICKS:
        return exact, Fraction(1)
    tick = total / _MOST_TICKS
    return tick, max(math.ceil(amount / tick) * tick / amount for amount in amounts)


def _memory_unit(problem: Problem) -> Fraction:
    counted = Counter(amount for block in problem.blocks for amount in (*block.memory, *block.workspace) if amount)
    if not counted:
        return Fraction(1)
    amounts = {_exact(amount): times for amount, times in counted.items()}
    unit = _common_unit(amounts)  # capacities are rounded down to it, which excludes nothing
    largest = max(sum((abs(amount) * times for amount, times in amounts.items()), Fraction(0)),
                  *(_exact(device.memory) for device in problem.devices if device.memory is not None), Fraction(0))
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
