"""Facts independent of open decisions: over the open choices that a part of a problem depends on.

A *case* is one way to decide the choices that something depends on. A fact true in all its cases is true under every
assignment, as no other choice affects it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product
from math import inf, nextafter, prod
from types import MappingProxyType
from typing import TypeAlias

from weft.solver.problem import Block, Dependency, Number, Options, Problem
from weft.solver.problem.block import holds
from weft.solver.values import exact

#: A part that depends on more cases is not examined: no fact is known about it.
_MOST_CASES = 4096

_NONE: Options = MappingProxyType({})

#: One number for each class of a job's micro-batches, in their order; a single one if all are equal.
ByClass: TypeAlias = tuple[Fraction, ...]


def involved(whens: Iterable[Options]) -> frozenset[str]:
    """The choices named in ``whens``."""
    return frozenset(choice for when in whens for choice in when)


def choices_of(alternatives: Sequence[Block]) -> frozenset[str]:
    """The choices that decide which of the blocks of one name exists, if any."""
    return involved(block.when for block in alternatives)


def cases(choices: Mapping[str, tuple[str, ...]], names: Iterable[str], most: int = _MOST_CASES
          ) -> Iterator[dict[str, str]] | None:
    """Every way to decide the choices ``names``; ``None`` if there are more than ``most``."""
    ordered = sorted(names)
    if prod(len(choices[name]) for name in ordered) > most:
        return None
    return (dict(zip(ordered, options, strict=True)) for options in product(*(choices[name] for name in ordered)))


def alternative_under(alternatives: Sequence[Block], case: Options) -> Block | None:
    """The block that exists in a ``case`` of all that its name depends on."""
    return next((block for block in alternatives if holds(block.when, case)), None)


class CertainFacts:
    """Cached facts about ``problem``; queries may assume ``given`` options without taking them."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.choices = problem.choices
        self.alternatives = problem.alternatives
        self.choices_of = {name: choices_of(blocks) for name, blocks in self.alternatives.items()}
        self.classes = {job: problem.classes_of(job) or (None,) for job in problem.jobs or (None,)}
        self._durations: dict[int, ByClass] = {}
        self._lags: dict[int, ByClass] = {}

    def classes_of(self, name: str) -> tuple[str | None, ...]:
        """The classes of the micro-batches of a block; a single unnamed one if all are equal."""
        return self.classes[self.alternatives[name][0].job]

    def duration(self, block: Block) -> ByClass:
        """The duration of ``block``."""
        if id(block) not in self._durations:
            self._durations[id(block)] = by_class(block, "duration", self.classes[block.job])
        return self._durations[id(block)]

    def lag(self, wait: Dependency, block: Block) -> ByClass:
        """The lag of a ``wait`` of ``block``."""
        if id(wait) not in self._lags:
            self._lags[id(wait)] = by_class(wait, "lag", self.classes[block.job])
        return self._lags[id(wait)]

    def cases(self, names: Iterable[str], given: Options = _NONE) -> Iterator[Mapping[str, str]] | None:
        """The cases of the choices ``names`` in which the ``given`` options are taken; ``None`` if there are too
        many."""
        found = cases(self.choices, [name for name in names if name not in given])
        return None if found is None else ({**given, **case} for case in found)

    def certain(self, given: Options = _NONE) -> frozenset[str]:
        """The names of the blocks that exist under every assignment with the ``given`` options."""
        found = set()
        for name, alternatives in self.alternatives.items():
            every = self.cases(self.choices_of[name], given)
            if every is not None and all(alternative_under(alternatives, case) is not None for case in every):
                found.add(name)
        return frozenset(found)


# -- numbers ------------------------------------------------------------------------------------------------------


def number(value: Fraction) -> Number:
    """A number as it is written, no larger than ``value``."""
    if value.denominator == 1:
        return int(value)
    found = float(value)
    return found if exact(found) <= value else nextafter(found, -inf)


def by_class(of: Block | Dependency, field: str, classes: Sequence[str | None]) -> ByClass:
    """That field of ``of``, a number, for each of ``classes``."""
    values = of.by_class.get(field)
    return tuple(exact(getattr(of, field) if values is None else values[str(name)]) for name in classes)


def of_class(values: Sequence[Number], classes: Sequence[str | None]) -> Number | Mapping[str, Number]:
    """The reverse of :func:`by_class`: a single number if all are equal."""
    if len(set(values)) == 1:
        return values[0]
    return {str(name): value for name, value in zip(classes, values, strict=True)}
