"""The joint memory need of micro-batches of all classes, in any order.

A micro-batch occupies an amount x on a device at least for its least lifetime l, from its taker's start to its giver's
end (:func:`weft.solver.relations.min_dist.least_lifetimes`); a block's workspace is occupied for its duration. At any
time the amounts occupied add up to the capacity C at most. So do their weights f(x) to 1, for any f such as

* f(x) = x / C: memory x time of all together is no more than C x the time there is;
* for some a above C / 2: f(x) = 1 if x >= a, 0 if x <= C - a, else x / C. Of two amounts of a or more at most one is
  resident at a time, and beside it there is room only for amounts without weight; without it the sum is the first one;
* for some k: f(x) = [(k + 1) x / C] / k, rounded down, and x / C if that is whole already. k + 1 amounts above
  C / (k + 1) are too many, so k of them fill the device.

Hence the time from the first start on a device to its last end is at least the sum of f(x) l over all amounts there
(dual feasible functions: Fekete and Schepers, "New classes of fast lower bounds for bin packing problems", Math.
Program. 91, 2001). The places of micro-batches do not matter. Pools with lanes are omitted: they get no bound.

A class whose micro-batch exceeds a device's capacity while one of its blocks runs (the workspace of the block, plus the
amounts taken by blocks before it and given back by none before it) is in no sequence that has a schedule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from functools import partial as partial_of

from weft.solver.bounds.memory import chains_of_one
from weft.solver.choices.sequences.partial import Sequences
from weft.solver.control.clock import checkpoint
from weft.solver.problem import Problem
from weft.solver.relations.min_dist import Distances, least_lifetimes
from weft.solver.ticks import TickProblem
from weft.solver.values import exact

#: The most amounts above half of a device's memory, and the most parts of it, that are tried.
_MOST_WEIGHTS, _MOST_PARTS = 16, 12


@dataclass(frozen=True)
class _Items:
    """``held``: amounts and their lifetimes. ``most``: the level at some time. In the problem's units."""

    held: tuple[tuple[Fraction, Fraction], ...]
    most: Fraction


class MemoryNeeds:
    """The needs of micro-batches of ``problem``, which has no open choices."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def on(self, device: int, partial: Sequences) -> Fraction:
        """The least time from the first start to the last end on ``device``, in the problem's time unit, of every
        sequence that ``partial`` leaves open; 0 if no bound is known."""
        best = Fraction(0)
        for weights in self._weights[device]:
            total = Fraction(0)
            for job, part in partial.jobs.items():
                each = [weights[job, name] for name in part.names]
                total += sum((each[c] for c in part.fixed if c >= 0), Fraction(0))
                rest = sorted(each[c] for c, count in enumerate(part.left) for _ in range(count))
                total += sum(rest[:part.open], Fraction(0))
            best = max(best, total)
        return best

    def excludes(self, partial: Sequences) -> bool:
        """Whether every sequence that ``partial`` leaves open has a micro-batch that does not fit alone."""
        for job, part in partial.jobs.items():
            wrong = {c for c, name in enumerate(part.names) if (job, name) in self._impossible}
            room = sum(count for c, count in enumerate(part.left) if c not in wrong)
            if wrong & set(part.fixed) or room < part.open:
                return True
        return False

    @cached_property
    def _impossible(self) -> set[tuple[str | None, str | None]]:
        """The classes of each job that exceed a device's capacity alone."""
        return {place for place, devices in self._held.items()
                for device, items in zip(self.problem.devices, devices, strict=True)
                if device.memory is not None and items.most > exact(device.memory)}

    @cached_property
    def _weights(self) -> list[list[dict[tuple[str | None, str | None], Fraction]]]:
        """For each device, for each way to weigh amounts: the sum of weight x lifetime of each job's classes."""
        found: list[list[dict[tuple[str | None, str | None], Fraction]]] = [[] for _ in self.problem.devices]
        places = list(self._held)
        for number, device in enumerate(self.problem.devices):
            if not device.memory:
                continue
            capacity = exact(device.memory)
            large = sorted({amount for place in places for amount, _ in self._held[place][number].held
                            if amount * 2 > capacity and amount <= capacity}, reverse=True)
            ways: list[Callable[[Fraction], Fraction]] = [
                Fraction, *(partial_of(_above, least / capacity) for least in large[:_MOST_WEIGHTS]),
                *(partial_of(_in_parts, k) for k in range(1, _MOST_PARTS + 1))]
            for weigh in ways:
                found[number].append({place: sum((weigh(amount / capacity) * life
                                                  for amount, life in self._held[place][number].held), Fraction(0))
                                      for place in places})
        return found

    @cached_property
    def _held(self) -> dict[tuple[str | None, str | None], list[_Items]]:
        """The amounts of a micro-batch of each job and class on each device: none if they are not known for all, as an
        amount that one gives without having taken it is room for another."""
        found = {(job, name): self._items(job, name) for job in self.problem.jobs or (None,)
                 for name in self.problem.classes_of(job) or (None,)}
        known = [all(items[device] is not None for items in found.values())
                 for device in range(len(self.problem.devices))]
        return {place: [_Items((), Fraction(0)) if entry is None or not is_known else entry
                        for entry, is_known in zip(items, known, strict=True)] for place, items in found.items()}

    def _items(self, job: str | None, name: str | None) -> list[_Items | None]:
        checkpoint()
        blocks = tuple(block.of_class(name) for block in self.problem.blocks if block.job == job)
        instance = TickProblem.of(Problem(self.problem.name, self.problem.devices, blocks, self.problem.links))
        chains = chains_of_one(instance)
        owners = {device.lane_of for device in self.problem.devices}
        return [None if device.lane_of is not None or device.name in owners else _items_on(instance, number, chains)
                for number, device in enumerate(self.problem.devices)]


def _items_on(instance: TickProblem, device: int, chains: Distances) -> _Items | None:
    """The amounts of one micro-batch on ``device``; ``None`` if they are not known."""
    known = least_lifetimes(instance, device, chains)
    if known is None or any(life < 0 for _, _, _, life in known.held):
        return None
    second, unit = instance.tick / instance.inflation, instance.memory_unit
    take, change = instance.take[device], instance.change[device]
    space = {i: take[i] - max(change[i], 0) for i in take}

    def before(i: int, j: int) -> bool:
        return i == j or int(chains[i, j]) >= instance.durations[i]

    most = max((space[i] + sum(amount for taker, giver, amount, _ in known.held
                               if before(taker, i) and before(i, giver)) for i in take), default=0)
    return _Items(tuple([*((amount * unit, life * second) for _, _, amount, life in known.held),
                         *((amount * unit, instance.durations[i] * second) for i, amount in space.items() if amount)]),
                  most * unit)


def _above(least: Fraction, share: Fraction) -> Fraction:
    """The weight of a ``share`` of the capacity if those of ``least`` or more exclude each other."""
    if share >= least:
        return Fraction(1)
    return Fraction(0) if share <= 1 - least else share


def _in_parts(k: int, share: Fraction) -> Fraction:
    """The weight if ``k`` above a (k + 1)-th of the capacity fill it."""
    parts = (k + 1) * share
    return share if parts.denominator == 1 else Fraction(math.floor(parts), k)
