"""The cheapest joint choice for variables whose costs are sums of small tables: exact, by eliminating one at a time.

Bucket elimination (Dechter, "Bucket elimination: a unifying framework for reasoning", 1999): all tables that name a
variable are added into one, which is minimised over it and so becomes a table of its neighbours. The order takes the
variable with the smallest such table first. Time grows with the largest table, which for the operators of a layer
(a row of them, with residual connections over it) has three or four variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Factor", "cheapest"]

_Table: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Factor:
    """A cost for every combination of values of ``variables``, one axis each."""

    variables: tuple[str, ...]
    table: _Table


def cheapest(sizes: Mapping[str, int], factors: Sequence[Factor]) -> tuple[dict[str, int], float]:
    """The value of every variable (``sizes``: how many each has) with the least sum of ``factors``, and that sum.

    Of equal choices the one with the smaller numbers, last eliminated variables first.
    """
    left = list(factors)
    removed: list[tuple[str, Factor]] = []
    open_variables = set(sizes)
    while open_variables:
        variable = min(sorted(open_variables), key=lambda name: _width(name, left, sizes))
        touching = [factor for factor in left if variable in factor.variables]
        bucket = _sum(variable, touching, sizes)
        removed.append((variable, bucket))
        left = [factor for factor in left if variable not in factor.variables]
        left.append(Factor(bucket.variables[:-1], bucket.table.min(axis=-1)))
        open_variables.remove(variable)
    chosen: dict[str, int] = {}
    for variable, bucket in reversed(removed):
        row = bucket.table[tuple(chosen[name] for name in bucket.variables[:-1])]
        chosen[variable] = int(row.argmin())
    return chosen, float(sum(float(factor.table) for factor in left))


def _width(variable: str, factors: Sequence[Factor], sizes: Mapping[str, int]) -> int:
    names = {name for factor in factors if variable in factor.variables for name in factor.variables}
    return int(np.prod([sizes[name] for name in names], dtype=np.int64))


def _sum(last: str, factors: Sequence[Factor], sizes: Mapping[str, int]) -> Factor:
    """The sum of ``factors``, with ``last`` as its last axis."""
    names = [*sorted({name for factor in factors for name in factor.variables} - {last}), last]
    total: Any = np.zeros([sizes[name] for name in names])
    for factor in factors:
        order = sorted(range(len(factor.variables)), key=lambda axis: names.index(factor.variables[axis]))
        held = set(factor.variables)
        total = total + factor.table.transpose(order).reshape([sizes[name] if name in held else 1 for name in names])
    return Factor(tuple(names), total)
