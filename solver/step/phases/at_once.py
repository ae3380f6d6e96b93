"""For many operations: a schedule made at once, then the bounds, before anything else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from weft.solver.baselines.lib.at_once import at_once
from weft.solver.control.clock import unwatched
from weft.solver.control.garbage import seldom_collected
from weft.solver.step.state import State


class AtOnce:
    """1F1B where the problem is a chain of stages that holds it, else one micro-batch after the other."""

    name: ClassVar[str] = "baselines"
    vital: ClassVar[bool] = True

    def due(self, state: State) -> bool:
        """Where bounds and known schedules take long."""
        return state.is_large

    def steps(self, state: State) -> Iterator[None]:
        """One step for the schedule, one for the bounds."""
        if state.incumbent.best is None:
            with unwatched(), seldom_collected(never=True):
                began = state.budget.now()
                _offer(state)
                state.incumbent.keep_time_afterwards(state.budget.now() - began)
            yield
        state.raise_bounds()
        yield


def _offer(state: State) -> None:
    for name, orders in at_once(state.problem, state.micro_batches):
        if state.incumbent.fits(orders) and state.incumbent.offer(orders, name):
            return
