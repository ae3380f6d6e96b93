"""Periods of several micro-batches, where the steady state could still be faster than the best known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from weft.solver.period.search import find_period
from weft.solver.step.phases.completion import complete_around
from weft.solver.step.state import State

#: Numbers of micro-batches per period that are tried where one is not rate-optimal, in this order.
_MICRO_BATCHES = (2, 3, 4)
#: Up to so many blocks, those of all micro-batches of a period counted, such periods are tried; and with so many
#: periods at least in the whole schedule.
_MOST_BLOCKS, _LEAST_PERIODS = 160, 8
#: Deterministic seconds at most for one number, the share of what is left that it may take, and for one solve.
_EFFORT, _SHARE, _EACH = 6.0, 0.2, 1.0


class LongerPeriods:
    """Their edges are those of :mod:`weft.solver.step.phases.completion`."""

    name: ClassVar[str] = "longer periods"
    vital: ClassVar[bool] = False

    def due(self, state: State) -> bool:
        """Where a better schedule with a steady state is possible."""
        return not state.settled

    def steps(self, state: State) -> Iterator[None]:
        """One step for every number of micro-batches, and those of the edges of a better period."""
        from weft.solver.period.reductions.multi_batch import in_copies, repeat_copies

        if state.periods is None:
            return
        best = state.periods.best
        for count in _MICRO_BATCHES:
            blocks = count * len(state.problem.blocks)
            short = state.micro_batches < _LEAST_PERIODS * count  # too few for such a period to repeat
            if state.settled or short or blocks > _MOST_BLOCKS or best.rate <= state.proven.steady_bound:
                return
            state.phase = f"repetend of {count}"
            start = repeat_copies(state.periods.best, in_copies(state.instance, count), count)
            search = find_period(start.instance, start, state.budget, each=_EACH,
                                 deterministic=state.budget.share(_SHARE, _EFFORT))
            state.proven.rate_bounds[count] = search.refuted / count
            state.report.techniques.add(search.counts)
            yield
            if search.best.rate < best.rate:
                best = search.best
                yield from complete_around(search.best, state)
