"""All operations ordered by one model: to proof where they are few, else for a moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from weft.solver.relations.fixed_order import FixedOrder
from weft.solver.step.state import State


@dataclass(frozen=True)
class Whole:
    """For problems of ``more_than`` to ``up_to`` operations: ``at_most`` deterministic seconds, and no more than
    ``share`` of what is left, where one is given. Without ``relaxation`` no linear one is kept: it says next to nothing
    of orders, and where times have many digits most of the time goes there."""

    name: ClassVar[str] = "whole schedule"
    vital: ClassVar[bool] = False

    up_to: int
    at_most: float
    share: float | None = None
    more_than: int = 0
    relaxation: bool = True

    def due(self, state: State) -> bool:
        """Where there are not too many operations."""
        polishes = state.incumbent.goal.polishes
        return polishes and self.more_than < state.operations <= self.up_to and not state.done

    def steps(self, state: State) -> Iterator[None]:
        """One solve."""
        incumbent = state.incumbent
        effort = self.at_most if self.share is None else state.budget.share(self.share, self.at_most)
        result = incumbent.goal.reorder(
            FixedOrder(state.instance, state.micro_batches, incumbent.orders),
            [(0, len(row)) for row in incumbent.orders], state.budget, bound=state.least, deterministic=effort,
            implied=state.implied, relaxation=self.relaxation)
        state.proven.raise_to(result.bound, state.objective)
        if result.orders is not None:
            incumbent.offer(result.orders, "weft")
        else:
            state.tell()
        yield
