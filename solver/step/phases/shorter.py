"""Makespans between the bound and the best schedule, asked of one model of all operations: refuted, or reached.

A refuted one is the new bound (:mod:`weft.solver.step.shorter`), and the next is twice as far from it; where one stays
open, half as far.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import ClassVar

from weft.solver.relations.fixed_order import FixedOrder
from weft.solver.relations.graph import contracted
from weft.solver.step.state import State

#: Up to so many operations: the model has a Boolean for every two of a device.
_MOST_OPERATIONS = 1500
#: The share of the gap at which a makespan is asked for: at first, at least and at most.
_FIRST, _LEAST, _MOST = Fraction(1, 8), Fraction(1, 16), Fraction(1, 2)
#: Deterministic seconds for one, for each operation; so many times as many once the least share stays open.
_EACH, _LONGER = 2.5e-4, 4
#: Where deterministic time is limited: beside it, as that of states, so large a share of what is left at first. Out of
#: it, three of 72 golden runs had longer schedules.
_BESIDE = 0.25


@dataclass(frozen=True)
class Shorter:
    """Ends when the best is proven optimal."""

    name: ClassVar[str] = "bound"
    vital: ClassVar[bool] = False

    def due(self, state: State) -> bool:
        """Where there are not too many operations, and what is proven of them is of makespans."""
        return (state.operations <= _MOST_OPERATIONS and state.objective == "makespan" and not state.done
                and not state.instance.mixed_pools)

    def steps(self, state: State) -> Iterator[None]:
        """One step for every makespan."""
        from weft.solver.step.shorter import shorter

        share, each, budget = _FIRST, _EACH * state.operations, state.budget
        least = contracted(state.instance, max(1, state.proven.contractions[0].kept))
        part = least if least.cut else None
        left = float("inf") if budget.deterministic is None else budget.share(_BESIDE)
        while not state.done and left > 0:
            bound = ceil(state.proven.bound)
            best = FixedOrder(state.instance, state.micro_batches, state.incumbent.orders)
            than = bound + ceil((best.makespan - bound) * share)
            used = budget.deterministic_used
            found = shorter(state.proven, than, budget, min(each, left), best, part)
            if budget.deterministic is not None:
                left -= max(budget.deterministic_used - used, _EACH)
                budget.deterministic_used = used
            if found.orders is not None:
                if not state.incumbent.offer(found.orders, "weft"):
                    part = None  # it reaches what is not proven to be out of the whole's reach
            elif found.bound >= than:
                state.raise_bound(found.bound)
                share = min(_MOST, 2 * share)
            elif share > _LEAST and than > bound + 1:
                share /= 2
            else:
                each *= _LONGER
            yield
