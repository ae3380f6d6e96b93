"""One problem without choices that every assignment's schedules map into: what bounds it bounds them all.

A schedule of any assignment, taken with its start times and without the blocks that other assignments lack, is a
schedule of the relaxed problem with as many micro-batches (jobs and classes are left as they are):

* *Blocks*: only those of which there is one under every assignment. Each lasts the least of its alternatives, so it
  ends no later than it did.
* *Devices*: those that all alternatives hold, on which nothing new runs and nothing overlaps; a block whose
  alternatives have none in common gets a device of its own, on which its micro-batches run in turn as they did.
* *Waits*: those that every assignment implies, as long as the shortest (:mod:`weft.solver.choices.relaxed.waits`).
* *Links*: a wait keeps its link where all alternatives use it; its lag is the least. A link then carries some of the
  transfers that it did, none longer, in the same order as their producers keep their starts: by induction over that
  order each begins and arrives no later than it did.
* *Memory*: amounts that are never more than the assignment's (:mod:`weft.solver.choices.relaxed.memory`); where none
  are known the device is unlimited.

So the makespan, the span and the period of the mapped schedule are no larger, and each bound, refuter and proof of
infeasibility that holds for the relaxed problem holds for every assignment.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

from weft.solver.choices.relaxed.certain import (
    ByClass,
    Facts,
    alternative_under,
    by_class,
    exact,
    involved,
    number,
    of_class,
    owners,
)
from weft.solver.choices.relaxed.memory import Held, relaxed_amounts
from weft.solver.choices.relaxed.waits import Wait, implied_waits
from weft.solver.problem import Device, Number
from weft.solver.wide.block import Amounts, WideBlock, WideDependency, holds
from weft.solver.wide.problem import WideProblem

__all__ = ["relaxed"]


def relaxed(problem: WideProblem) -> WideProblem | None:
    """A problem without choices into which every schedule of every assignment of ``problem`` maps; ``None`` where no
    block is common to all."""
    if not problem.choices:
        return problem
    facts = Facts(problem)
    certain = facts.certain()
    if not certain:
        return None
    made = _Relaxed(problem, facts, certain)
    return WideProblem(problem.name, made.devices, made.blocks, problem.links, {}, problem.time_unit,
                       problem.memory_unit)


@dataclass
class _Relaxed:
    """The parts of the relaxed problem, each made from those before."""

    problem: WideProblem
    facts: Facts
    certain: Set[str]

    def __post_init__(self) -> None:
        names = [name for name in self.problem.alternatives if name in self.certain]
        self.devices = self.problem.devices
        self.places = {name: self._place(name) for name in names}
        self.durations = {name: self._duration(name) for name in names}
        self.waits = self._waits()
        self.held = self._memory()
        self.blocks = tuple(map(self._block, names))

    def _place(self, name: str) -> tuple[int, ...]:
        """The devices that all alternatives hold, or one of its own."""
        alternatives = self.problem.alternatives[name]
        common = tuple(device for device in alternatives[0].devices
                       if all(device in block.devices for block in alternatives))
        if common:
            return common
        taken = {device.name for device in self.devices}
        label = f"{name}'s own"
        while label in taken:
            label += "'"
        self.devices = (*self.devices, Device(label))
        return (len(self.devices) - 1,)

    def _duration(self, name: str) -> ByClass:
        values = map(self.facts.duration, self.problem.alternatives[name])
        return tuple(map(min, zip(*values, strict=True)))

    def _waits(self) -> Mapping[str, list[WideDependency]]:
        found: dict[str, list[WideDependency]] = {}
        for wait, length in implied_waits(self.facts, self.certain).items():
            producer, consumer, distance = wait
            classes = self.facts.classes_of(producer)
            lag = [number(a - b) for a, b in zip(length, self.durations[producer], strict=True)]
            linked = self._linked(wait)
            here = found.setdefault(consumer, [])
            if linked is not None:
                here.append(linked)
                if all(exact(a) <= b for a, b in zip(lag, by_class(linked.lag, classes), strict=True)):
                    continue
            here.append(WideDependency(producer, of_class(lag, classes), None, distance))
        return found

    def _linked(self, wait: Wait) -> WideDependency | None:
        """The transfer of ``wait`` on the link that all alternatives use, if there is one."""
        producer, consumer, distance = wait
        targets = self.problem.alternatives[consumer]
        waits = [(block, wait) for block in targets for wait in block.after
                 if wait.block == producer and wait.distance == distance]
        links = {wait.link for _, wait in waits}
        label = next(iter(links), None)
        link = next((link for link in self.problem.links if link.name == label), None)
        if len(links) > 1 or link is None or not (link.source in self.places[producer]
                                                  and link.target in self.places[consumer]):
            return None
        every = self.facts.cases(self.facts.choices_of[producer] | self.facts.choices_of[consumer]
                                 | involved(wait.when for _, wait in waits))
        for case in every or ():
            target = alternative_under(targets, case)
            if sum(block is target and holds(wait.when, case) for block, wait in waits) != 1:
                return None
        classes = self.facts.classes_of(producer)
        lags = zip(*(self.facts.lag(wait, block) for block, wait in waits), strict=True)
        return WideDependency(producer, of_class([number(min(lag)) for lag in lags], classes), label, distance)

    def _memory(self) -> Mapping[tuple[int, str | None, str | None], Mapping[str, Held]]:
        """Per limited pool, job and class, what the blocks hold that depend on choices."""
        found: dict[tuple[int, str | None, str | None], Mapping[str, Held]] = {}
        owner = owners(self.problem)
        for pool, device in enumerate(self.problem.devices):
            if owner[pool] != pool or device.memory is None:
                continue
            members = {d for d, of in enumerate(owner) if of == pool}
            kept = {name for name, place in self.places.items() if members & set(place)}
            for job, classes in self.facts.classes.items():
                for name in classes:
                    amounts = relaxed_amounts(self.facts, members, kept, name, job)
                    if amounts is None or not all(map(_is_written, amounts.values())):
                        self.devices = tuple(replace(of, memory=None) if d == pool else of
                                             for d, of in enumerate(self.devices))
                        break
                    found[pool, job, name] = amounts
        return found

    def _block(self, name: str) -> WideBlock:
        alternatives = self.problem.alternatives[name]
        first = alternatives[0]
        classes = self.facts.classes_of(name)
        memory: dict[str, Amounts] = {}
        workspace: dict[str, Amounts] = {}
        for label in classes:
            memory[str(label)], workspace[str(label)] = self._amounts(name, label)
        single = len(classes) == 1
        return WideBlock(
            name, first.kind, self.places[name], of_class([number(value) for value in self.durations[name]], classes),
            next(iter(memory.values())) if single else memory,
            next(iter(workspace.values())) if single else workspace,
            tuple(self.waits.get(name, ())), {}, first.job)

    def _amounts(self, name: str, label: str | None) -> tuple[Amounts, Amounts]:
        """What the block takes for good or gives, and its workspace, on each of its devices."""
        alternatives = self.problem.alternatives[name]
        place = self.places[name]
        if not self.facts.choices_of[name]:
            plain = alternatives[0].of_class(label)
            return plain.memory, plain.workspace
        memory: list[Number] = [0] * len(place)
        workspace: list[Number] = [0] * len(place)
        owner = owners(self.problem)
        seen: set[int] = set()
        for at, device in enumerate(place):
            pool = owner[device] if device < len(owner) else device
            held = self.held.get((pool, alternatives[0].job, label), {}).get(name)
            if held is not None and pool not in seen:
                memory[at] = number(held.take - held.give)
                workspace[at] = number(min(held.take, held.give))
            seen.add(pool)
        return tuple(memory), tuple(workspace)


def _is_written(held: Held) -> bool:
    """Whether its amounts are numbers as files have them."""
    return all(exact(number(value)) == value for value in (held.take - held.give, min(held.take, held.give)))
