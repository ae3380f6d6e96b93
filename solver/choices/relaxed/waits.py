"""The waits that every assignment implies, and the least length of each, from start to start.

*Direct.* a -> c at distance h is valid if every case of the choices of both has such a wait. Its length, a's duration
and the lag, is the least of all cases: a case's duration goes with its own lag.

*Through blocks that come and go.* Take the options of one choice, one after the other; under each, more blocks are
certain: those that this choice alone adds and removes. A path a -> x -> c through such blocks is valid under that
option as a -> c, as long as its longest. If every option implies some a -> c of distance h (through a block, or
directly), the least of these lengths is valid under every decision.

If micro-batches differ, lengths are those of the class of a's micro-batch; the parts that belong to another micro-batch
on the way count with the least of all classes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from graphlib import TopologicalSorter
from types import MappingProxyType
from typing import TypeAlias

from weft.solver.choices.relaxed.certain import ByClass, CertainFacts, alternative_under, involved
from weft.solver.problem import Block, Options
from weft.solver.problem.block import holds

_NONE: Options = MappingProxyType({})

#: Producer, consumer, distance.
Wait: TypeAlias = tuple[str, str, int]
#: The most micro-batches that paths through such blocks span.
_FARTHEST = 3


def implied_waits(facts: CertainFacts, certain: Set[str]) -> dict[Wait, ByClass]:
    """The waits between the ``certain`` blocks that are valid under every decision, with their least lengths."""
    found = direct_waits(facts, certain, facts.alternatives)
    for choice in facts.choices:
        for wait, length in _by_choice(facts, certain, choice).items():
            found[wait] = _most(found[wait], length) if wait in found else length
    return found


def direct_waits(facts: CertainFacts, names: Collection[str], consumers: Collection[str], given: Options = _NONE
                 ) -> dict[Wait, ByClass]:
    """Waits between ``names``, which exist under every assignment with the ``given`` options, for ``consumers`` among
    them."""
    found: dict[Wait, ByClass] = {}
    for consumer in consumers:
        if consumer in names:
            waits = (wait for block in facts.alternatives[consumer] for wait in block.after)
            for producer in dict.fromkeys(wait.block for wait in waits if wait.block in names):
                for distance, length in _between(facts, producer, consumer, given).items():
                    found[producer, consumer, distance] = length
    return found


def _between(facts: CertainFacts, producer: str, consumer: str, given: Options) -> dict[int, ByClass]:
    """By distance, the least length of the waits of ``consumer`` for ``producer`` in all cases."""
    sources, targets = facts.alternatives[producer], facts.alternatives[consumer]
    whens = (wait.when for block in targets for wait in block.after if wait.block == producer)
    every = facts.cases(facts.choices_of[producer] | facts.choices_of[consumer] | involved(whens), given)
    found: dict[int, ByClass] | None = None
    for case in every or ():
        source, target = alternative_under(sources, case), alternative_under(targets, case)
        assert source is not None and target is not None  # both are certain
        lengths = _lengths(facts, source, target, case)
        found = lengths if found is None else {distance: _least(length, lengths[distance])
                                               for distance, length in found.items() if distance in lengths}
        if not found:
            return {}
    return found or {}


def _lengths(facts: CertainFacts, source: Block, target: Block, case: Options) -> dict[int, ByClass]:
    duration = facts.duration(source)
    found: dict[int, ByClass] = {}
    for wait in target.after:
        if wait.block == source.name and holds(wait.when, case):
            length = _sum(duration, facts.lag(wait, target))
            found[wait.distance] = _most(found[wait.distance], length) if wait.distance in found else length
    return found


def _by_choice(facts: CertainFacts, certain: Set[str], choice: str) -> dict[Wait, ByClass]:
    """The waits that every option of ``choice`` implies between the ``certain`` blocks that it affects."""
    found: dict[Wait, ByClass] | None = None
    touched = _touched(facts, choice)
    for option in facts.choices[choice]:
        given = {choice: option}
        names = facts.certain(given)
        lengths = dict(_through(direct_waits(facts, names, touched, given), names - certain))
        found = lengths if found is None else {wait: _least(length, lengths[wait])
                                               for wait, length in found.items() if wait in lengths}
        if not found:
            return {}
    return found or {}


def _touched(facts: CertainFacts, choice: str) -> list[str]:
    """The blocks whose waits ``choice`` affects."""
    changed = {name for name, choices in facts.choices_of.items() if choice in choices}
    return [name for name, alternatives in facts.alternatives.items()
            if name in changed or any(wait.block in changed or choice in wait.when
                                      for block in alternatives for wait in block.after)]


def _through(waits: Mapping[Wait, ByClass], between: Collection[str]) -> Iterator[tuple[Wait, ByClass]]:
    """The waits among the blocks that are not ``between``: the direct ones, and those through the others."""
    out: dict[str, list[tuple[str, int, ByClass]]] = {}
    for (producer, consumer, distance), length in waits.items():
        out.setdefault(producer, []).append((consumer, distance, length))
    inner: TopologicalSorter[str] = TopologicalSorter({name: () for name in between})
    for producer, consumer, distance in waits:
        if producer in between and consumer in between and not distance:
            inner.add(consumer, producer)
    order = {name: at for at, name in enumerate(inner.static_order())}
    for source in out:
        if source not in between:
            yield from _from(source, out, order)


def _from(source: str, out: Mapping[str, list[tuple[str, int, ByClass]]], order: Mapping[str, int]
          ) -> Iterator[tuple[Wait, ByClass]]:
    """The waits from ``source``: the longest paths, over one distance after the other."""
    reached: dict[Wait, ByClass] = {}
    longest: list[dict[str, ByClass]] = [{} for _ in range(_FARTHEST + 1)]

    def go(consumer: str, distance: int, length: ByClass) -> None:
        if consumer not in order:
            wait = (source, consumer, distance)
            reached[wait] = _most(reached[wait], length) if wait in reached else length
        elif distance <= _FARTHEST:
            here = longest[distance]
            here[consumer] = _most(here[consumer], length) if consumer in here else length

    for consumer, distance, length in out.get(source, ()):
        go(consumer, distance, length)
    for passed, here in enumerate(longest):
        for name in sorted(order, key=lambda name: order[name]):
            if name in here:
                for consumer, distance, length in out.get(name, ()):
                    further = length if not passed else (min(length),) * len(length)
                    go(consumer, passed + distance, _sum(here[name], further))
    yield from reached.items()


def _sum(one: ByClass, other: ByClass) -> ByClass:
    return tuple(a + b for a, b in zip(one, other, strict=True))


def _least(one: ByClass, other: ByClass) -> ByClass:
    return tuple(map(min, zip(one, other, strict=True)))


def _most(one: ByClass, other: ByClass) -> ByClass:
    return tuple(map(max, zip(one, other, strict=True)))
