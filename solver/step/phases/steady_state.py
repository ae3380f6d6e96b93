"""The least period of one micro-batch, repeated as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from weft.solver.baselines import NotApplicable
from weft.solver.period.bracket import Bracket
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.period.search import find_period
from weft.solver.step.state import State

__all__ = ["SteadyState"]

#: Up to so many blocks a period is searched: its matrices have a row and a column a block.
_MOST_BLOCKS = 2048
#: Deterministic seconds for it; and where the best is proven already, which only gains a steady state to unroll.
_EFFORT, _SHARE, _TO_UNROLL = 30.0, 0.3, 1.0


class SteadyState:
    """Leaves what it finds in ``state.periods``."""

    name: ClassVar[str] = "repetend"
    vital: ClassVar[bool] = False

    def due(self, state: State) -> bool:
        """Where there are not too many blocks."""
        return state.periods is None and len(state.problem.blocks) <= _MOST_BLOCKS

    def steps(self, state: State) -> Iterator[None]:
        """One step, if there can be a steady state.

        Without balance there is none; and where a block gives back what another micro-batch takes, a repeated schedule
        may not fit while there is no micro-batch before.
        """
        if not state.repeats:
            return
        try:
            start = one_at_a_time(state.instance)
        except NotApplicable:  # all micro-batches fit, but no order of one was found
            return

        def changed(search: Bracket) -> None:
            state.periods = search
            state.proven.rate_bounds[1] = search.refuted

        with state.budget.limited():
            state.periods = find_period(state.instance, start, state.budget, changed,
                                        deterministic=_TO_UNROLL if state.done else state.budget.share(_SHARE, _EFFORT),
                                        published=state.incumbent.name)
        if state.periods is not None:
            state.report.techniques.add(state.periods.counts)
            state.incumbent.offer_repeated(state.periods.best)
        yield
