"""The bound raised by windows of neighbouring micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from weft.solver.step.state import State

__all__ = ["Tighten"]

#: Deterministic seconds at most, and the share of what is left that it may take.
_EFFORT, _SHARE = 3.0, 0.2


class Tighten:
    """What is proven of windows: :mod:`weft.solver.bounds.windows`."""

    name: ClassVar[str] = "bound"
    vital: ClassVar[bool] = False

    def due(self, state: State) -> bool:
        """Where the makespan is what is searched for."""
        return state.objective == "makespan"

    def steps(self, state: State) -> Iterator[None]:
        """One step for every window or less."""
        from weft.solver.bounds.windows import rolling_bounds

        effort = state.budget.share(_SHARE, _EFFORT)
        for bound in rolling_bounds(state.instance, state.micro_batches, state.budget, deterministic=effort):
            state.raise_bound(bound)
            yield
