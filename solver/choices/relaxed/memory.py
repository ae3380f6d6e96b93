"""Amounts of memory that are never more than any assignment's, at any moment of any of its schedules.

The least of each block's amounts is not that: of "A takes 10, B gives 10" and "A takes 10, B gives 2, C gives 8" it
would be a schedule that keeps 8 forever. So a set of amounts needs a criterion of soundness. Take a schedule of one
assignment, and let D be the change by an event (a block's start, its end) of it less its change under the amounts
sought. The level sought never exceeds the real one if the sum of D over all events that have happened is never
negative. That is so if there is a *flow*: a deficit at one event, where D is negative, is covered by the surplus at
others that have happened by then in every schedule, namely along "a block's start is before its end" and "a producer
ends before its consumer starts" within a micro-batch. For, of the events that have happened, any inflow comes from such
an event, and any outflow is 0 or more. A block that ends sooner than under the assignment (durations are the least,
too) gives back sooner, which lowers the level sought.

Amounts and flows together are linear, so CP-SAT searches for the amounts in whole units: for all cases that the blocks
depend on at once, with the least sum that the assignments leave occupied (so they stay balanced), and such that large
amounts stay for long. Independent blocks are treated separately: their D add up. If there are no such amounts, or too
many cases, the device counts as unlimited.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import gcd, lcm

from weft.solver.choices.relaxed.certain import CertainFacts, alternative_under, cases
from weft.solver.choices.relaxed.waits import direct_waits
from weft.solver.cpsat.budget import Budget
from weft.solver.cpsat.solve import run
from weft.solver.late import cp_model, nx
from weft.solver.problem import Block, Options
from weft.solver.relations.graph import joined
from weft.solver.values import exact

#: With more cases, or events in all of them, no amounts are searched for.
_MOST_CASES, _MOST_EVENTS = 64, 2000
#: Deterministic seconds for it: a few milliseconds are enough.
_EACH = 0.5
#: The largest sum that CP-SAT adds up without overflow.
_LARGEST = 2**50


@dataclass(frozen=True)
class TakeAndGive:
    """The amounts that a block takes from a pool at its start, and gives back at its end."""

    take: Fraction
    give: Fraction


def held_of(block: Block, name: str | None, pool: Collection[int]) -> TakeAndGive:
    """The amounts that ``block`` takes and gives on the devices of ``pool``, if its micro-batch is of class
    ``name``."""
    plain = block.of_class(name)
    take = give = Fraction(0)
    for device, amount, space in zip(plain.devices, plain.memory, plain.workspace, strict=True):
        if device in pool:
            take += exact(max(amount, 0)) + exact(space)
            give += exact(max(-amount, 0)) + exact(space)
    return TakeAndGive(take, give)


def relaxed_amounts(facts: CertainFacts, pool: Collection[int], kept: Set[str], name: str | None,
                    job: str | None) -> dict[str, TakeAndGive] | None:
    """The amounts that each block of ``job`` that depends on open choices is to take and give on the devices of
    ``pool``, if the micro-batch is of class ``name``; only the blocks ``kept`` may have any. ``None`` if the pool must
    count as unlimited."""
    found: dict[str, TakeAndGive] = {}
    for names, choices in _groups(facts, pool, job):
        every = cases(facts.choices, choices, _MOST_CASES)
        if every is None:
            return None
        seen = [_case(facts, case, names, pool, name) for case in every]
        if any(block in kept for block in names) or any(amounts for amounts, _ in seen):
            amounts = _sought(tuple(sorted(kept & set(names))), tuple(seen), _depths(seen, names))
            if amounts is None:
                return None
            found.update(amounts)
    return found


def _groups(facts: CertainFacts, pool: Collection[int], job: str | None) -> Iterator[tuple[list[str], frozenset[str]]]:
    """The blocks on ``pool`` that depend on choices, partitioned by these choices."""
    of_name = {name: facts.choices_of[name] for name, alternatives in facts.alternatives.items()
               if facts.choices_of[name] and alternatives[0].job == job
               and any(set(block.devices) & set(pool) for block in alternatives)}
    for group in joined(of_name.values()):
        yield [name for name, choices in of_name.items() if choices <= group], frozenset(group)


#: The amounts of the blocks of a case, and which of them end before which start.
Case = tuple[tuple[tuple[str, TakeAndGive], ...], tuple[tuple[str, str], ...]]


def _case(facts: CertainFacts, case: Options, names: list[str], pool: Collection[int], name: str | None) -> Case:
    here = {block: alternative_under(facts.alternatives[block], case) for block in names}
    held = {block: held_of(found, name, pool) for block, found in here.items() if found is not None}
    waits: nx.DiGraph[str] = nx.DiGraph()
    waits.add_nodes_from(held)
    certain = facts.certain(case)
    waits.add_edges_from((a, c) for a, c, distance in direct_waits(facts, certain, certain, case) if not distance)
    closed = nx.transitive_closure_dag(waits).subgraph(held)
    return tuple(held.items()), tuple(sorted(nx.transitive_reduction(closed).edges))


def _depths(seen: list[Case], names: list[str]) -> tuple[tuple[str, int], ...]:
    """The approximate position of each block: its index if the blocks of most cases are put in one order."""
    depth = dict.fromkeys(names, 0)
    for held, edges in seen:
        waits: nx.DiGraph[str] = nx.DiGraph(edges)
        waits.add_nodes_from(block for block, _ in held)
        for at, layer in enumerate(nx.topological_generations(waits)):
            for block in layer:
                depth[block] = max(depth[block], at)
    return tuple(depth.items())


def _sought(kept: tuple[str, ...], seen: tuple[Case, ...], depths: tuple[tuple[str, int], ...]
            ) -> Mapping[str, TakeAndGive] | None:
    """Amounts of the blocks ``kept`` that are sound for every case; many nodes of one tree request the same."""
    numbers = [amount for held, _ in seen for _, of in held for amount in (of.take, of.give)]
    if not any(numbers):
        return {block: TakeAndGive(Fraction(0), Fraction(0)) for block in kept}
    shares = lcm(*(amount.denominator for amount in numbers))
    unit = Fraction(gcd(*(int(amount * shares) for amount in numbers)), shares)
    if sum(numbers) / unit > _LARGEST or 2 * sum(len(held) for held, _ in seen) > _MOST_EVENTS:
        return None
    try:
        return _amounts(kept, seen, depths, unit)
    except _NoAnswer:
        return None


class _NoAnswer(Exception):
    """Time was over: a later call may have an answer."""


@lru_cache(maxsize=4096)
def _amounts(kept: tuple[str, ...], seen: tuple[Case, ...], depths: tuple[tuple[str, int], ...], unit: Fraction
             ) -> Mapping[str, TakeAndGive] | None:
    return _Sought(kept, seen, dict(depths), unit).amounts()


class _Sought:
    """The model: amounts of the blocks ``kept``, and for each case a flow."""

    def __init__(self, kept: tuple[str, ...], seen: tuple[Case, ...], depth: Mapping[str, int], unit: Fraction) -> None:
        self.unit = unit
        self.model = cp_model.CpModel()
        self.most = sum(int((of.take + of.give) / unit) for held, _ in seen for _, of in held)
        self.take = {block: self.model.new_int_var(0, self.most, f"take {block}") for block in kept}
        self.give = {block: self.model.new_int_var(0, self.most, f"give {block}") for block in kept}
        for held, edges in seen:
            self._flow(dict(held), edges)
        left = min(sum(int((of.take - of.give) / unit) for _, of in held) for held, _ in seen)
        self.model.add(sum(self.take.values()) - sum(self.give.values()) == left)
        self.model.maximize(sum((2 * depth[block] + 1) * self.give[block] - 2 * depth[block] * self.take[block]
                                for block in kept))

    def _flow(self, held: Mapping[str, TakeAndGive], edges: Collection[tuple[str, str]]) -> None:
        """The surplus at an event flows to later ones, and nowhere is a deficit."""
        over: dict[tuple[str, bool], list[cp_model.LinearExprT]] = {}
        for block, of in held.items():
            over[block, False] = [int(of.take / self.unit) - self.take.get(block, 0)]
            over[block, True] = [self.give.get(block, 0) - int(of.give / self.unit)]
        for one, other in [*(((block, False), (block, True)) for block in held),
                           *(((a, True), (c, False)) for a, c in edges)]:
            flow = self.model.new_int_var(0, self.most, f"flow {one} {other}")
            over[one].append(-1 * flow)
            over[other].append(flow)
        for parts in over.values():
            self.model.add(sum(parts) >= 0)

    def amounts(self) -> Mapping[str, TakeAndGive] | None:
        outcome = run(self.model, Budget(), deterministic=_EACH, workers=1, presolve=True)
        if outcome.infeasible:
            return None
        if not outcome.found:
            raise _NoAnswer
        return {block: TakeAndGive(outcome.solver.value(self.take[block]) * self.unit,
                                   outcome.solver.value(self.give[block]) * self.unit) for block in self.take}
