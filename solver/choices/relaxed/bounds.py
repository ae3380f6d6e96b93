"""Bounds on all assignments together: the arguments about one problem, applied to the relaxed one.

One problem without choices that every assignment's schedules map into: a bound on it is one on them all.

A schedule of any assignment, taken with its start times and without the blocks that other assignments lack, is a
schedule of the relaxed problem with as many micro-batches (jobs and classes are left as they are):

* *Blocks*: only those that exist under every assignment. Each lasts the least of its alternatives, so it ends no later
  than it did.
* *Devices*: those common to all alternatives, on which nothing new runs and nothing overlaps; a block whose
  alternatives have none in common gets a device of its own, on which its micro-batches run in turn as they did.
* *Waits*: those that every assignment implies, as long as the shortest (:mod:`weft.solver.choices.relaxed.waits`).
* *Links*: a wait keeps its link if all alternatives use it; its lag is the least. A link then carries some of the
  transfers that it did, none longer, in the same order as their producers keep their starts: by induction over that
  order each begins and arrives no later than it did.
* *Memory*: amounts that are never more than the assignment's (:mod:`weft.solver.choices.relaxed.memory`); if none are
  known the device is unlimited.

So the makespan, the span and the period of the mapped schedule are no larger, and each bound, refuter and proof of
infeasibility that is valid for the relaxed problem is valid for every assignment.

The least work of each device over all assignments: a bound that covers blocks that move, split or come and go.

Blocks whose existence hangs on a common choice make a *group*, as do groups with a common block; groups are independent
of each other. So the work of a device for the whole run is at least the sum over the groups of the least work that any
case of a group's choices puts there. A device runs one block at a time: no step is shorter, and none takes less time of
a device from its first start to its last end; nor can steady rounds follow each other sooner than after a round's work.
Links carry one transfer at a time too, but are left to the relaxed problem, which in turn must omit a block that moves
from every device.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from fractions import Fraction

from weft.solver.choices.relaxed.certain import (
    ByClass,
    CertainFacts,
    alternative_under,
    by_class,
    cases,
    choices_of,
    involved,
    number,
    of_class,
)
from weft.solver.choices.relaxed.memory import TakeAndGive, relaxed_amounts
from weft.solver.choices.relaxed.waits import Wait, implied_waits
from weft.solver.cpsat.budget import Budget
from weft.solver.feasibility.memory_order import find_room
from weft.solver.problem import Amounts, Block, Dependency, Device, Number, Problem, owners, per_class
from weft.solver.problem.block import holds
from weft.solver.problem.rounds import Rounds, Run
from weft.solver.relations.graph import joined
from weft.solver.relations.min_dist import takes_before_giving
from weft.solver.step.proven import Proven
from weft.solver.ticks import TickProblem
from weft.solver.values import exact

#: Deterministic seconds for the test whether one round fits the memory.
_ROOM = 0.05


def bound_of(problem: Problem, run: Run, objective: str, known: float = 0.0) -> float:
    """A lower bound on the ``objective`` of the best schedule of any assignment of ``problem``, in the problem's time
    unit; no less than ``known``. Infinite if it is proven that no assignment has one."""
    bound = max(known, load_bound(problem, run, objective))
    common = relaxed(problem)
    if common is None or math.isinf(bound):
        return bound
    instance = TickProblem.of(Rounds(common, run).problem)
    if _has_no_room(instance):
        return math.inf
    proven = Proven(instance, run.rounds)
    proven.raise_by_all(objective)
    return max(bound, proven.of(objective))


def _has_no_room(instance: TickProblem) -> bool:
    """Whether it is proven that not even one round fits. Remove all rounds of a schedule but one: if each takes before
    it gives back, the level of no device rises."""
    if not any(instance.limited(device) for device in range(len(instance.capacity))):
        return False
    return takes_before_giving(instance) and find_room(instance, 1, Budget(), _ROOM).impossible


def relaxed(problem: Problem) -> Problem | None:
    """A problem without choices into which every schedule of every assignment of ``problem`` maps; ``None`` if no block
    is common to all."""
    if not problem.choices:
        return problem
    facts = CertainFacts(problem)
    certain = facts.certain()
    if not certain:
        return None
    made = _Relaxed(problem, facts, certain)
    return Problem(problem.name, made.devices, made.blocks, problem.links, problem.time_unit, problem.memory_unit)


@dataclass
class _Relaxed:
    """The parts of the relaxed problem, each made from those before."""

    problem: Problem
    facts: CertainFacts
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
        """The devices common to all alternatives, or a separate one."""
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

    def _waits(self) -> Mapping[str, list[Dependency]]:
        found: dict[str, list[Dependency]] = {}
        for wait, length in implied_waits(self.facts, self.certain).items():
            producer, consumer, distance = wait
            classes = self.facts.classes_of(producer)
            lag = [number(a - b) for a, b in zip(length, self.durations[producer], strict=True)]
            linked = self._linked(wait)
            here = found.setdefault(consumer, [])
            if linked is not None:
                here.append(linked)
                if all(exact(a) <= b for a, b in zip(lag, by_class(linked, "lag", classes), strict=True)):
                    continue
            here.append(Dependency(producer, distance=distance, **per_class(lag=of_class(lag, classes))))
        return found

    def _linked(self, wait: Wait) -> Dependency | None:
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
        return Dependency(producer, link=label, distance=distance,
                          **per_class(lag=of_class([number(min(lag)) for lag in lags], classes)))

    def _memory(self) -> Mapping[tuple[int, str | None, str | None], Mapping[str, TakeAndGive]]:
        """Per limited pool, job and class, the amounts of the blocks that depend on choices."""
        found: dict[tuple[int, str | None, str | None], Mapping[str, TakeAndGive]] = {}
        owner = owners(self.problem.devices)
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

    def _block(self, name: str) -> Block:
        alternatives = self.problem.alternatives[name]
        first = alternatives[0]
        classes = self.facts.classes_of(name)
        memory: dict[str, Amounts] = {}
        workspace: dict[str, Amounts] = {}
        for label in classes:
            memory[str(label)], workspace[str(label)] = self._amounts(name, label)
        single = len(classes) == 1
        return Block(
            name, first.kind, self.places[name], **per_class(
                duration=of_class([number(value) for value in self.durations[name]], classes),
                memory=next(iter(memory.values())) if single else memory,
                workspace=next(iter(workspace.values())) if single else workspace),
            after=tuple(self.waits.get(name, ())), job=first.job)

    def _amounts(self, name: str, label: str | None) -> tuple[Amounts, Amounts]:
        """The amounts that the block takes for good or gives, and its workspace, on each of its devices."""
        alternatives = self.problem.alternatives[name]
        place = self.places[name]
        if not self.facts.choices_of[name]:
            plain = alternatives[0].of_class(label)
            return plain.memory, plain.workspace
        memory: list[Number] = [0] * len(place)
        workspace: list[Number] = [0] * len(place)
        owner = owners(self.problem.devices)
        seen: set[int] = set()
        for at, device in enumerate(place):
            pool = owner[device] if device < len(owner) else device
            held = self.held.get((pool, alternatives[0].job, label), {}).get(name)
            if held is not None and pool not in seen:
                memory[at] = number(held.take - held.give)
                workspace[at] = number(min(held.take, held.give))
            seen.add(pool)
        return tuple(memory), tuple(workspace)


def _is_written(held: TakeAndGive) -> bool:
    """Whether its amounts can be written as numbers in files."""
    return all(exact(number(value)) == value for value in (held.take - held.give, min(held.take, held.give)))


def load_bound(problem: Problem, run: Run, objective: str = "makespan") -> float:
    """A lower bound for all schedules of every assignment by the devices' work, in the problem's time unit: on the
    makespan and the span by the whole run, on the rate by a round."""
    most = max(least_work(problem, run), default=Fraction(0))
    return float(most if objective != "rate" else most / run.rounds)


def least_work(problem: Problem, run: Run) -> tuple[Fraction, ...]:
    """Per device, the least time that any assignment keeps it busy with the whole of ``run``."""
    least = [Fraction(0)] * len(problem.devices)
    for choices, blocks in _groups(problem):
        every = cases(problem.choices, choices)
        if every is None:
            continue
        works = [_work(problem, blocks, case, run) for case in every]
        for device in range(len(least)):
            least[device] += min(work.get(device, Fraction(0)) for work in works)
    return tuple(least)


def _groups(problem: Problem) -> list[tuple[frozenset[str], list[Block]]]:
    """The blocks, partitioned by the choices they depend on, with these choices."""
    alone = ({choice} for choice in problem.choices)
    groups = [frozenset(choices) for choices in joined([*alone, *map(choices_of, problem.alternatives.values())])]
    of_choice = {choice: group for group in groups for choice in group}
    blocks: dict[frozenset[str], list[Block]] = {group: [] for group in (frozenset[str](), *groups)}
    for block in problem.blocks:
        blocks[of_choice[next(iter(block.when))] if block.when else frozenset()].append(block)
    return list(blocks.items())


def _work(problem: Problem, blocks: list[Block], case: Mapping[str, str], run: Run) -> dict[int, Fraction]:
    work: dict[int, Fraction] = {}
    for block in blocks:
        if holds(block.when, case):
            for device in block.devices:
                work[device] = work.get(device, Fraction(0)) + _time(block, run)
    return work


def _time(block: Block, run: Run) -> Fraction:
    """The time of all micro-batches of a block, exactly."""
    if "duration" not in block.by_class:
        return exact(block.duration) * len(run.classes[block.job])
    counted = Counter(run.classes[block.job])
    return sum((exact(block.of_class(name).duration) * count for name, count in counted.items()), Fraction(0))
