"""The least period of one micro-batch, repeated as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from weft.solver.baselines import NotApplicable
from weft.solver.period.bracket import Bracket
from weft.solver.period.improvers.starts import periodic_seed
from weft.solver.period.search import find_period
from weft.solver.step.state import State

#: Up to so many blocks a period is searched: its matrices have a row and a column a block.
_MOST_BLOCKS = 2048
#: Deterministic seconds for it; and where the best is proven already, which only gains a steady state to unroll.
_EFFORT, _SHARE, _TO_UNROLL = 30.0, 0.3, 1.0


class SteadyState:
    """Leaves what it finds in ``state.periods``."""

    name: ClassVar[str] = "repetend"
    vital: ClassVar[bool] = False

    def due(self, state: State) -> bool:
        """Where there are not too many blocks, and they are no single pass: its order is timed as it is wanted, and
        lanes that share a memory begin the next pass together. Rounds of several micro-batches wait for each other."""
        instance = state.instance
        single = (state.micro_batches == 1 and state.objective == "makespan" and bool(instance.mixed_pools)
                  and not any(arc.distance for arc in instance.arcs))
        return state.periods is None and len(state.problem.blocks) <= _MOST_BLOCKS and not single

    def steps(self, state: State) -> Iterator[None]:
        """One step, if there can be a steady state.

        Without balance there is none; and where a block gives back what another micro-batch takes, a repeated schedule
        may not fit while there is no micro-batch before.
        """
        if not state.repeats:
            return
        try:
            start = periodic_seed(state.instance, state.incumbent.name)
        except NotApplicable:  # all micro-batches fit, but no order of one was found
            return

        def changed(search: Bracket) -> None:
            state.periods = search
            state.proven.rate_bounds[1] = search.refuted

        with state.budget.limited():
            state.periods = find_period(state.instance, start, state.budget, changed,
                                        deterministic=_TO_UNROLL if state.done else state.budget.share(_SHARE, _EFFORT))
        if state.periods is not None:
            state.report.techniques.add(state.periods.counts)
            state.incumbent.offer_repeated(state.periods.best)
        yield
