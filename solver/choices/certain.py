"""What holds whatever is decided: over the open choices that a part of a problem depends on.

A *case* is one way to decide the choices that something depends on. What is looked at in all its cases is known under
every assignment, as no other choice has to do with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product
from math import inf, nextafter, prod
from typing import TypeAlias

from weft.solver.problem import Number
from weft.solver.wide.block import Options, WideBlock, holds
from weft.solver.wide.problem import WideProblem

__all__ = ["ByClass", "alternative_under", "by_class", "cases", "certain_names", "choices_of", "exact", "involved",
           "number", "of_class", "owners"]

#: What depends on more cases is not looked at: nothing is said of it.
_MOST_CASES = 4096

#: One number for each class of a job's micro-batches, in their order; a single one where all are alike.
ByClass: TypeAlias = tuple[Fraction, ...]


def involved(whens: Iterable[Options]) -> frozenset[str]:
    """The choices that are named."""
    return frozenset(choice for when in whens for choice in when)


def choices_of(alternatives: Sequence[WideBlock]) -> frozenset[str]:
    """The choices that decide which of the blocks of one name there is, if any."""
    return involved(block.when for block in alternatives)


def cases(choices: Mapping[str, tuple[str, ...]], names: Iterable[str], most: int = _MOST_CASES
          ) -> Iterator[dict[str, str]] | None:
    """Every way to decide the choices ``names``; ``None`` where there are more than ``most``."""
    ordered = sorted(names)
    if prod(len(choices[name]) for name in ordered) > most:
        return None
    return (dict(zip(ordered, options, strict=True)) for options in product(*(choices[name] for name in ordered)))


def alternative_under(alternatives: Sequence[WideBlock], case: Options) -> WideBlock | None:
    """The block that there is in a ``case`` of all that its name depends on."""
    return next((block for block in alternatives if holds(block.when, case)), None)


def certain_names(problem: WideProblem) -> frozenset[str]:
    """The names of which there is a block under every assignment."""
    found = set()
    for name, alternatives in problem.alternatives.items():
        every = cases(problem.choices, choices_of(alternatives))
        if every is not None and all(alternative_under(alternatives, case) is not None for case in every):
            found.add(name)
    return frozenset(found)


def owners(problem: WideProblem) -> tuple[int, ...]:
    """Per device, the one whose memory its blocks count on: its owner for a lane, else itself."""
    places = {device.name: d for d, device in enumerate(problem.devices)}
    return tuple(d if device.lane_of is None else places[device.lane_of] for d, device in enumerate(problem.devices))


# -- numbers ------------------------------------------------------------------------------------------------------


def exact(value: Number) -> Fraction:
    """The decimal number that was written: 0.1 is one tenth."""
    return Fraction(str(value))


def number(value: Fraction) -> Number:
    """A number as it is written, no larger than ``value``."""
    if value.denominator == 1:
        return int(value)
    found = float(value)
    return found if exact(found) <= value else nextafter(found, -inf)


def by_class(value: Number | Mapping[str, Number], classes: Sequence[str | None]) -> ByClass:
    """``value`` for each of ``classes``."""
    return tuple(exact(value[str(name)] if isinstance(value, Mapping) else value) for name in classes)


def of_class(values: Sequence[Number], classes: Sequence[str | None]) -> Number | Mapping[str, Number]:
    """The reverse of :func:`by_class`: a single number where all are alike."""
    if len(set(values)) == 1:
        return values[0]
    return {str(name): value for name, value in zip(classes, values, strict=True)}
