"""What holds whatever is decided: over the open choices that a part of a problem depends on.

A *case* is one way to decide the choices that something depends on. Something that is looked at in all its cases is
known under every assignment, as no other choice has to do with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod

from weft.solver.wide.block import Options, WideBlock, holds
from weft.solver.wide.problem import WideProblem

__all__ = ["alternative_under", "cases", "certain_names", "choices_of", "involved"]

#: What depends on so many cases is not looked at: nothing is said of it.
_MOST_CASES = 4096


def involved(whens: Iterable[Options]) -> frozenset[str]:
    """The choices that are named."""
    return frozenset(choice for when in whens for choice in when)


def choices_of(alternatives: Sequence[WideBlock]) -> frozenset[str]:
    """The choices that decide which of the blocks of one name there is, if any."""
    return involved(block.when for block in alternatives)


def cases(choices: Mapping[str, tuple[str, ...]], names: Iterable[str]) -> Iterator[dict[str, str]] | None:
    """Every way to decide the choices ``names``; ``None`` where there are too many."""
    ordered = sorted(names)
    if prod(len(choices[name]) for name in ordered) > _MOST_CASES:
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
