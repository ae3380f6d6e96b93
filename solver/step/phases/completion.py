"""Warm-up and cool-down around the shortest period of one micro-batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from weft.solver.period.periodic import Periodic
from weft.solver.schedule import RELATIVE_TOLERANCE
from weft.solver.step.state import State

#: How many periods more than needed belong to the warm-up, and to the cool-down, one after the other.
_EDGES = (0, 1, 2, 4)
#: Deterministic seconds at most for a shorter latency (of an optimum that only lacks a steady state), and for one edge;
#: and the share of what is left that each may take.
_LATENCY, _LATENCY_OF_OPTIMUM, _EDGE, _SHARE = 2.0, 0.2, 1.0, 0.1
#: Up to so many operations edges are bounded before they are ordered: it takes as long as timing the schedule.
_MOST_BOUNDED = 20_000


class Completion:
    """The edges around ``state.periods``."""

    name: ClassVar[str] = "completion"
    vital: ClassVar[bool] = False

    def due(self, state: State) -> bool:
        """Where a better schedule with a steady state is possible."""
        return not state.settled

    def steps(self, state: State) -> Iterator[None]:
        """One step for every pair of edges."""
        if state.periods is not None:
            yield from complete_around(state.periods.best, state)


def complete_around(found: Periodic, state: State) -> Iterator[None]:
    """Offer ``found``, and one of the same period and less latency, each with wider and wider edges."""
    from weft.solver.period.shorten import shorten_latency
    from weft.solver.step.edges import complete

    budget, shorter = state.budget, found
    if state.done:  # where this is enough, no model is loaded
        state.incumbent.offer_repeated(found)
        if state.settled:
            return
    with budget.limited():
        most = _LATENCY_OF_OPTIMUM if state.done else _LATENCY
        shorter = shorten_latency(found, budget, deterministic=budget.share(_SHARE, most))
    for candidate in (found,) if shorter is found else (shorter, found):
        state.incumbent.offer_repeated(candidate)
        for edge in _EDGES:
            if state.settled:
                return
            completion = None
            with budget.limited():
                if not _may_help(state, candidate, edge):
                    continue
                completion = complete(state.instance, candidate, state.micro_batches, budget, edge=edge,
                                      deterministic=budget.share(_SHARE, _EDGE), order=state.incumbent.goal.reorder)
            if completion is None:
                break
            state.incumbent.offer_repetend(completion.unrolled(state.micro_batches), candidate, edge)
            yield


def _may_help(state: State, found: Periodic, edge: int) -> bool:
    """Whether such edges may lead to a schedule that is kept, as far as is known: of an optimum that lacks a steady
    state, one with the same makespan, which a quick bound may rule out."""
    from weft.solver.step.edges import least_around

    best = state.incumbent.best
    if best is None or not state.done or state.objective != "makespan" or state.operations > _MOST_BOUNDED or (
            state.micro_batches // found.micro_batches_per_period <= found.depth + 2 * edge):
        return True
    least = least_around(state.instance, found, state.micro_batches, edge)
    return state.instance.bound(least, state.micro_batches) <= best.makespan * (1 + RELATIVE_TOLERANCE)
