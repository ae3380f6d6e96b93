"""The waits that every assignment implies, and the least length of each, from start to start.

a -> c at distance h is valid if every case of the choices of both has such a wait. Its length, a's duration and the
lag, is the least of all cases: a case's duration goes with its own lag. If micro-batches differ, lengths are those of
the class of a's micro-batch.
"""

from __future__ import annotations

from collections.abc import Set
from typing import TypeAlias

from weft.solver.choices.relaxed.certain import ByClass, CertainFacts, alternative_under, involved
from weft.solver.wide.block import Options, WideBlock, holds

#: Producer, consumer, distance.
Wait: TypeAlias = tuple[str, str, int]


def implied_waits(facts: CertainFacts, certain: Set[str]) -> dict[Wait, ByClass]:
    """The waits between the ``certain`` blocks that are valid under every decision, with their least lengths."""
    found: dict[Wait, ByClass] = {}
    for consumer, alternatives in facts.alternatives.items():
        if consumer in certain:
            waits = (wait for block in alternatives for wait in block.after)
            for producer in dict.fromkeys(wait.block for wait in waits if wait.block in certain):
                for distance, length in _between(facts, producer, consumer).items():
                    found[producer, consumer, distance] = length
    return found


def _between(facts: CertainFacts, producer: str, consumer: str) -> dict[int, ByClass]:
    """By distance, the least length of the waits of ``consumer`` for ``producer`` in all cases."""
    sources, targets = facts.alternatives[producer], facts.alternatives[consumer]
    whens = (wait.when for block in targets for wait in block.after if wait.block == producer)
    every = facts.cases(facts.choices_of[producer] | facts.choices_of[consumer] | involved(whens))
    found: dict[int, ByClass] | None = None
    for case in every or ():
        source, target = alternative_under(sources, case), alternative_under(targets, case)
        assert source is not None and target is not None  # both are certain
        lengths = _lengths(facts, source, target, case)
        found = lengths if found is None else {distance: tuple(map(min, zip(length, lengths[distance], strict=True)))
                                               for distance, length in found.items() if distance in lengths}
        if not found:
            return {}
    return found or {}


def _lengths(facts: CertainFacts, source: WideBlock, target: WideBlock, case: Options) -> dict[int, ByClass]:
    duration = facts.duration(source)
    found: dict[int, ByClass] = {}
    for wait in target.after:
        if wait.block == source.name and holds(wait.when, case):
            length = tuple(a + b for a, b in zip(duration, facts.lag(wait, target), strict=True))
            found[wait.distance] = tuple(map(max, zip(found.get(wait.distance, length), length, strict=True)))
    return found
