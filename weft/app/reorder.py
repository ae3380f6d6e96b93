"""The best order of micro-batches of different length, over all placements of a spec."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from weft.app.lib.case import Case, Placement
from weft.app.lib.options import SearchOptions
from weft.solver.choices.sequences.costs import Costs
from weft.solver.choices.sequences.partial import given_sequences
from weft.solver.choices.sequences.solve import solve_sequence
from weft.solver.feasibility.infeasible import Infeasible, NoneFound
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.solver.step.search import Progress

__all__ = ["best_order"]


def best_order(case: Case, options: SearchOptions, on_progress: Callable[[Progress], None] = lambda _: None
               ) -> Schedule:
    """The best schedule over all orders of the case's micro-batches and all its placements.

    The placements share the time; one whose bound over all orders is not below the best schedule is passed over. Raises
    what :func:`~weft.solver.choices.sequences.solve.solve_sequence` raises where no placement has a schedule.
    """
    bounds = {n: _bound(placement) for n, placement in enumerate(case.placements)}
    best: Schedule | None = None
    refusals: list[Infeasible] = []

    def least() -> float:
        return min(bounds.values())

    def heard(progress: Progress) -> None:
        shown = _labelled(case.placements[number], progress.best)
        if best is None or shown.makespan < best.makespan:
            on_progress(replace(progress, best=shown.with_value_bound(min(least(), shown.makespan))))

    ranked = sorted(bounds, key=lambda n: bounds[n])
    for turn, number in enumerate(ranked):
        rounds = case.placements[number].rounds
        if best is not None and bounds[number] >= best.makespan * (1 - RELATIVE_TOLERANCE):
            continue
        assert rounds is not None
        left = len(ranked) - turn
        try:
            found = solve_sequence(rounds.wide, rounds.run, objective=options.objective, on_progress=heard,
                                   time_limit=options.left / left, seed=options.seed, workers=options.workers,
                                   effort=None if options.effort is None else options.effort / len(ranked))
        except Infeasible as refusal:
            refusals.append(refusal)
            if not isinstance(refusal, NoneFound):
                bounds[number] = math.inf
            continue
        bounds[number] = max(bounds[number], found.makespan_bound)
        if best is None or found.makespan < best.makespan:
            best = _labelled(case.placements[number], found)
        if found.solver.get("interrupted"):
            break
    if best is None:
        raise min(refusals, key=lambda refusal: not isinstance(refusal, NoneFound))
    covered = case.coverage.text()
    bound = min(least(), best.makespan)
    return best.with_solver(**({"covered": covered} if covered else {}), placements=len(case.placements),
                            bound_over_placements=bound)


def _bound(placement: Placement) -> float:
    """What no order on ``placement`` is below."""
    assert placement.rounds is not None
    return Costs(placement.rounds.wide).bound(given_sequences(placement.rounds.run))


def _labelled(placement: Placement, schedule: Schedule) -> Schedule:
    """``schedule``, whose rounds are its own, with what it says of its placement."""
    return schedule.with_solver(**placement.details)
