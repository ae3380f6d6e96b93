"""The best order of micro-batches of different length, over all placements of a spec."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from weft.app.lib.case import Case, Placement
from weft.app.lib.options import SearchOptions
from weft.solver.choices.sequences.first_schedules import Found
from weft.solver.choices.sequences.node import SequenceNode, SequenceProblem
from weft.solver.choices.sequences.partial import given_sequences
from weft.solver.choices.sequences.solve import first_orders, solve_sequence
from weft.solver.feasibility.infeasible import Infeasible, NoneFound
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.solver.step.search import Progress

__all__ = ["best_order"]

#: Of the time: a look at all placements, and of what is left the search of the best one.
_LOOK, _FIRST = 0.3, 0.5


def best_order(case: Case, options: SearchOptions, on_progress: Callable[[Progress], None] = lambda _: None
               ) -> Schedule:
    """The best schedule over all orders of the case's micro-batches and all its placements.

    First each placement gets a look: orders by rule. Then that with the shortest schedule is searched for half of the
    time left, and the others share the rest; one whose bound over all orders is not below the best schedule is passed
    over. Raises what :func:`~weft.solver.choices.sequences.solve.solve_sequence` raises where no placement has a
    schedule.
    """
    entries = [_BoundedPlacement(placement) for placement in case.placements]
    _look(entries, options)
    entries.sort(key=lambda entry: (entry.first, entry.bound))
    best: Schedule | None = None
    refusals: list[Infeasible] = []
    entry = entries[0]

    def least() -> float:
        return min(other.bound for other in entries)

    def heard(progress: Progress) -> None:
        shown = entry.labelled(progress.best)
        if best is None or shown.makespan < best.makespan:
            on_progress(replace(progress, best=shown.with_value_bound(min(least(), shown.makespan))))

    for turn, entry in enumerate(entries):
        if best is not None and entry.bound >= best.makespan * (1 - RELATIVE_TOLERANCE):
            continue
        share = _FIRST if turn == 0 and len(entries) > 1 else 1 / (len(entries) - turn)
        try:
            found = solve_sequence(entry.rounds.wide, entry.rounds.run, start=entry.found, objective=options.objective,
                                   on_progress=heard,
                                   time_limit=options.left * share, seed=options.seed, workers=options.workers,
                                   effort=None if options.effort is None else options.effort / len(entries))
        except Infeasible as refusal:
            refusals.append(refusal)
            if not isinstance(refusal, NoneFound):
                entry.bound = math.inf
            continue
        entry.bound = max(entry.bound, found.makespan_bound)
        if best is None or found.makespan < best.makespan:
            best = entry.labelled(found)
        if found.solver.get("interrupted"):
            break
    if best is None:
        raise min(refusals, key=lambda refusal: not isinstance(refusal, NoneFound))
    covered = case.coverage.text()
    return best.with_solver(**({"covered": covered} if covered else {}), placements=len(case.placements),
                            bound_over_placements=min(least(), best.makespan))


class _BoundedPlacement:
    """A placement: ``bound`` is what no order on it is below, ``found`` the best order by rule."""

    def __init__(self, placement: Placement) -> None:
        assert placement.rounds is not None
        self.placement = placement
        self.rounds = placement.rounds
        self.root = SequenceNode(SequenceProblem(self.rounds.wide, {}), given_sequences(self.rounds.run))
        self.bound = self.root.bound
        self.found: Found | None = None

    @property
    def first(self) -> float:
        """What the best by rule comes to."""
        return math.inf if self.found is None else self.found.schedule.makespan

    def labelled(self, schedule: Schedule) -> Schedule:
        """``schedule``, whose rounds are its own, with what it says of its placement."""
        return schedule.with_solver(**self.placement.details)


def _look(entries: list[_BoundedPlacement], options: SearchOptions) -> None:
    """The best order by rule of each, as far as there is time."""
    if len(entries) == 1:
        return
    budget = options.budget()
    for turn, entry in enumerate(entries):
        with budget.limited(_LOOK / (len(entries) - turn)):
            for found in first_orders(entry.root, None, entry.rounds.run.classes):
                entry.found = found
