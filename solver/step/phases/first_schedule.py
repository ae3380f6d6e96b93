"""Known schedules; where none fits, any order of operations that does, or a proof that there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext, suppress
from typing import ClassVar

from weft.solver.baselines import NotApplicable
from weft.solver.control.clock import checkpoint, unwatched
from weft.solver.control.stopping import STOP
from weft.solver.period.improvers.starts import STARTS
from weft.solver.step.state import State

#: The share of the time left that all known schedules may take.
_KNOWN_SHARE = 0.6
#: The one that comes first where there are many operations: it fills the memory, and time may end before the others.
_FOR_MANY = "greedy"
#: Deterministic seconds of the first try at a schedule where no known one fits, and of the last one; every later try
#: may take so many times as long.
_FIRST_TRY, _LAST_TRY, _LONGER = 1.0, 256.0, 4


class FirstSchedule:
    """Raises :class:`~weft.solver.feasibility.infeasible.Infeasible` where no schedule fits the devices' memory, and
    its subclass ``NoneFound`` where that stays open."""

    name: ClassVar[str] = "baselines"
    vital: ClassVar[bool] = True

    def due(self, state: State) -> bool:
        """Always: no known schedule may be better than the answer."""
        return True

    def steps(self, state: State) -> Iterator[None]:
        """One step, and one more for every try that says nothing."""
        _offer_known(state)
        if state.incumbent.best is None:
            yield from _any_that_fits(state)
        yield


def _any_that_fits(state: State) -> Iterator[None]:
    from weft.solver.feasibility.infeasible import require_room
    from weft.solver.feasibility.memory_order import device_rows

    effort = _FIRST_TRY
    while state.incumbent.best is None:
        state.phase = "first schedule"
        order = None
        with state.budget.limited():
            order = require_room(state.instance, state.micro_batches, state.budget, effort)
        if order is not None:
            state.incumbent.offer(device_rows(state.instance, order), "weft")
        elif state.budget.spent or effort >= _LAST_TRY:
            raise state.none_found()
        else:
            effort *= _LONGER
            yield


def _offer_known(state: State) -> None:
    """Known schedules, as many as there is time for; where none is there yet, each gets its time. None has a shorter
    makespan than one that is proven optimal."""
    incumbent = state.incumbent
    with state.budget.limited(_KNOWN_SHARE):
        known = sorted(STARTS, key=lambda name: name != _FOR_MANY) if state.is_large else STARTS
        for name in known:
            proven = state.objective == "makespan" and incumbent.optimal
            if name in state.budget.without:
                continue
            if proven or (incumbent.best is not None and STOP.requested):
                return
            at_leisure = unwatched() if incumbent.best is None and not state.is_large else nullcontext()
            with at_leisure, state.surviving(), suppress(NotApplicable):
                found = STARTS[name](state.problem, state.micro_batches)
                checkpoint()
                if not state.is_large or incumbent.fits(found):  # the judge takes many times as long to say no
                    incumbent.offer(found, name)
