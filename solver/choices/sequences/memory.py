"""What micro-batches of all classes need of the devices' memory together, whatever their order.

A micro-batch holds an amount x on a device at least for its least lifetime l, from its taker's start to its giver's end
(:func:`weft.solver.relations.min_dist.least_lifetimes`); what a block takes while it runs it holds for its duration.
At any time the amounts held add up to the capacity C at most. So do their weights f(x) to 1, for any f that says

* f(x) = x / C: memory x time of all together is no more than C x the makespan;
* for some a above C / 2: f(x) = 1 where x >= a, 0 where x <= C - a, else x / C. Of two that hold a or more one at most
  is there at a time, and beside it there is no room but for what has no weight; without it the sum is the first one.

Hence the makespan is no less than the sum of f(x) l over all that is held (weights as these are known from packing:
Lueker, 1983). Which micro-batch is where does not count. Pools with lanes are left out: nothing is said of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property

from weft.solver.bounds.memory import chains_of_one
from weft.solver.choices.sequences.partial import Partial
from weft.solver.control.clock import checkpoint
from weft.solver.problem import Problem
from weft.solver.relations.min_dist import least_lifetimes
from weft.solver.ticks import TickProblem
from weft.solver.wide.problem import WideProblem

__all__ = ["MemoryNeeds"]

#: Amounts and for how long they are held, in the problem's units.
_Items = Sequence[tuple[Fraction, Fraction]]
#: So many weightings of a device are looked at.
_MOST_WEIGHTS = 16


class MemoryNeeds:
    """The needs of micro-batches of ``wide``, which has no open choices."""

    def __init__(self, wide: WideProblem) -> None:
        self.wide = wide

    def bound(self, partial: Partial) -> float:
        """A lower bound on the makespan of every sequence that ``partial`` leaves open, in the problem's time unit."""
        best = Fraction(0)
        for weights in self._weights:
            total = Fraction(0)
            for job, part in partial.jobs.items():
                each = [weights[job, name] for name in part.names]
                total += sum((each[c] for c in part.fixed if c >= 0), Fraction(0))
                rest = sorted(each[c] for c, count in enumerate(part.left) for _ in range(count))
                total += sum(rest[:part.open], Fraction(0))
            best = max(best, total)
        return float(best)

    @cached_property
    def _weights(self) -> list[dict[tuple[str | None, str | None], Fraction]]:
        """For each device and way to weigh amounts: the sum of weight x lifetime of each job's classes."""
        found = []
        places = [(job, name) for job in self.wide.jobs or (None,)
                  for name in self.wide.classes_of(job) or (None,)]
        owners = {device.lane_of for device in self.wide.devices}
        items = {place: self._items(*place) for place in places}
        for number, device in enumerate(self.wide.devices):
            if not device.memory or device.lane_of is not None or device.name in owners:
                continue
            capacity = Fraction(str(device.memory))
            large = sorted({amount for place in places for amount, _ in items[place][number]
                            if amount * 2 > capacity and amount <= capacity}, reverse=True)
            for least in [None, *large[:_MOST_WEIGHTS]]:
                found.append({place: sum((_weight(amount, capacity, least) * life
                                          for amount, life in items[place][number]), Fraction(0))
                              for place in places})
        return found

    def _items(self, job: str | None, name: str | None) -> list[_Items]:
        """Per device, what a micro-batch holds; nothing where that is not known."""
        checkpoint()
        blocks = tuple(block.of_class(name) for block in self.wide.blocks if block.job == job)
        instance = TickProblem.of(Problem(self.wide.name, self.wide.devices, blocks, self.wide.links))
        chains = chains_of_one(instance)
        second, unit = instance.tick / instance.inflation, instance.memory_unit
        found: list[_Items] = []
        for device in range(len(self.wide.devices)):
            held = least_lifetimes(instance, device, chains) if instance.limited(device) else None
            if held is None or any(life < 0 for _, _, _, life in held.held):
                found.append(())
                continue
            take, change = instance.take[device], instance.change[device]
            spaces = [((take[i] - max(change[i], 0)) * unit, instance.durations[i] * second) for i in take
                      if take[i] > max(change[i], 0)]
            found.append([*((amount * unit, life * second) for _, _, amount, life in held.held), *spaces])
        return found


def _weight(amount: Fraction, capacity: Fraction, least: Fraction | None) -> Fraction:
    if least is not None and amount >= least:
        return Fraction(1)
    if least is not None and amount <= capacity - least:
        return Fraction(0)
    return amount / capacity
