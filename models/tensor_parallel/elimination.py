"""The cheapest joint choice for variables whose costs are sums of small tables: exact, by eliminating one at a time.

Bucket elimination (Dechter, "Bucket elimination: a unifying framework for reasoning", 1999): all tables with a variable
are summed into one, which is minimised over it and so becomes a table of its neighbours. The variable with the smallest
such table is eliminated first. Time grows with the largest table, which for the operators of a layer (a chain with
residual connections) has three or four variables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

_Table: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Factor:
    """A cost for every combination of values of ``variables``, one axis each."""

    variables: tuple[str, ...]
    table: _Table


def cheapest(sizes: Mapping[str, int], factors: Sequence[Factor], largest: float = math.inf) -> dict[str, int]:
    """The value of every variable (``sizes``: their numbers of values) with the least sum of ``factors``.

    Among equally small tables, that of the first variable comes first, and among equal values the first. If no table
    has ``largest`` entries or fewer, the next variable takes the value that is cheapest on its own.
    """
    of: dict[str, list[Factor]] = {name: [] for name in sizes}
    for factor in factors:
        for name in factor.variables:
            of[name].append(factor)
    position = {name: i for i, name in enumerate(sizes)}
    widths = {name: _together(of[name], sizes) for name in sizes}
    taken: list[tuple[str, tuple[str, ...], NDArray[np.int64]]] = []
    while widths:
        name = min(widths, key=lambda one: (widths[one], position[one]))
        some, width = of.pop(name), widths.pop(name)
        others = tuple(sorted({one for factor in some for one in factor.variables} - {name}, key=position.__getitem__))
        if width > largest:
            at = int(np.argmin(_sum([factor for factor in some if factor.variables == (name,)], (name,), sizes)))
            made = [Factor(tuple(one for one in factor.variables if one != name),
                           np.take(factor.table, at, axis=factor.variables.index(name)))
                    for factor in some if len(factor.variables) > 1]
            taken.append((name, (), np.array(at)))
        else:
            whole = _sum(some, (*others, name), sizes)
            made = [Factor(others, whole.min(axis=-1))] if others else []
            taken.append((name, others, np.asarray(whole.argmin(axis=-1))))
        for other in others:
            of[other] = [factor for factor in of[other] if name not in factor.variables]
            of[other] += [factor for factor in made if other in factor.variables]
            widths[other] = _together(of[other], sizes)
    chosen: dict[str, int] = {}
    for name, others, values in reversed(taken):
        chosen[name] = int(values[tuple(chosen[other] for other in others)])
    return chosen


def _together(factors: Sequence[Factor], sizes: Mapping[str, int]) -> int:
    """Entries of the table of all variables of these factors."""
    return math.prod(sizes[name] for name in {one for factor in factors for one in factor.variables})


def _sum(factors: Sequence[Factor], names: Sequence[str], sizes: Mapping[str, int]) -> _Table:
    """The sum of ``factors``, with an axis for each of ``names``."""
    total = np.zeros([sizes[name] for name in names])
    for factor in factors:
        order = sorted(range(len(factor.variables)), key=lambda axis: names.index(factor.variables[axis]))
        total = total + factor.table.transpose(order).reshape(
            [sizes[name] if name in factor.variables else 1 for name in names])
    return total
