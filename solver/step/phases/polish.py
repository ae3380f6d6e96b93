"""Stretches of the whole schedule ordered anew, wider and wider, until all is one stretch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from weft.solver.relations.fixed_order import FixedOrder
from weft.solver.step.state import State

#: Up to so many operations the whole schedule is polished while time is left.
_MOST_OPERATIONS = 1500
#: Operations in the first stretches: this share of all, between the least and the most.
_SHARE, _LEAST, _MOST = 6, 24, 72
#: Deterministic seconds for a stretch, for each of its operations; and for all at once.
_EACH, _WHOLE = 0.02, 20.0


class Polish:
    """Stretches overlap by half; a round without success is followed by stretches twice as wide."""

    name: ClassVar[str] = "whole schedule"
    vital: ClassVar[bool] = False

    def due(self, state: State) -> bool:
        """Where there are not too many operations."""
        return state.incumbent.goal.polishes and state.operations <= _MOST_OPERATIONS

    def steps(self, state: State) -> Iterator[None]:
        """One step for every stretch."""
        size = min(_MOST, max(_LEAST, state.operations // _SHARE))
        while True:
            improved = False
            for first in range(0, state.operations, size // 2):
                improved |= _reorder_stretch(state, first, first + size)
                yield
            if size >= state.operations:
                return
            if not improved:
                size *= 2


def _reorder_stretch(state: State, first: int, last: int) -> bool:
    """Free the operations number ``first`` to ``last`` in order of start; whether a better schedule was kept."""
    orders = state.incumbent.orders
    fixed = FixedOrder(state.instance, state.micro_batches, orders)
    ranked = sorted(fixed.start, key=lambda op: (fixed.start[op], op))
    begin = fixed.start[ranked[first]]
    end = fixed.start[ranked[last]] if last < len(ranked) else None
    stretch = [(sum(fixed.start[op] < begin for op in row),
                len(row) if end is None else sum(fixed.start[op] < end for op in row)) for row in orders]
    whole = begin == 0 and end is None
    result = state.incumbent.goal.reorder(
        fixed, stretch, state.budget, bound=state.least,
        deterministic=_EACH * (last - first) if not whole else _WHOLE, implied=state.implied)
    if whole:
        state.raise_bound(result.bound)
    return result.orders is not None and state.incumbent.offer(result.orders, "weft")
