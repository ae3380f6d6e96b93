"""The best order of micro-batches of different lengths, over all placements of a spec."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from weft.app.lib.case import Case, CasePlacement
from weft.app.lib.options import SearchOptions
from weft.solver.choices.sequences.node import SequenceNode, SequenceProblem
from weft.solver.choices.sequences.partial import given_sequences
from weft.solver.choices.sequences.solve import Fitting, first_orders, solve_sequence
from weft.solver.portfolio import Candidate, Portfolio
from weft.solver.problem.rounds import Rounds
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.solver.step.search import Progress

#: Shares of the time: orders by rule on all placements, and of the rest the search of the best one.
_LOOK, _FIRST = 0.3, 0.5


def best_order(case: Case, options: SearchOptions, on_progress: Callable[[Progress], None] = lambda _: None
               ) -> Schedule:
    """The best schedule over all orders of the case's micro-batches and all its placements.

    First, orders by rule are tried on each placement. Then the one with the shortest schedule is searched for half of
    the remaining time, and the others share the rest; a placement whose bound over all orders is not below the best
    schedule is skipped. If no placement has a schedule, raises the exception of
    :func:`~weft.solver.choices.sequences.solve.solve_sequence`.
    """
    search = _Orders(options.budget(), on_progress=on_progress)
    roots = {Candidate(placement): _root(placement) for placement in case.placements}
    for entry, root in roots.items():
        entry.least = root.bound
    first = _first_looks(roots, options)
    search.entries = sorted(roots, key=lambda entry: (
        first[entry].schedule.makespan if entry in first else math.inf, entry.bound))
    count = len(search.entries)
    for turn, entry in enumerate(search.entries):
        if entry.bound >= search.best * (1 - RELATIVE_TOLERANCE):
            continue
        share = _FIRST if turn == 0 and count > 1 else 1 / (count - turn)
        rounds = _rounds(entry.of)
        search.take(entry, solve_sequence, rounds.origin, rounds.run, start=first.get(entry),
                    objective=options.objective, **{**options.limits, "time_limit": options.left * share,
                       "effort": None if options.effort is None else options.effort / count})
        if search.interrupted:
            break
    if search.leader is None or search.leader.found is None:
        raise search.nothing(case.name)
    covered = case.coverage.text()
    return search.leader.found.with_solver(
        **({"covered": covered} if covered else {}), placements=count, bound_over_placements=search.bound)


class _Orders(Portfolio[CasePlacement]):
    """The placements, each searched for its best order."""

    def labelled(self, candidate: Candidate[CasePlacement], schedule: Schedule) -> Schedule:
        """``schedule``, which has its own rounds, with its placement's details."""
        return schedule.with_solver(**candidate.of.details)


def _rounds(placement: CasePlacement) -> Rounds:
    assert placement.rounds is not None
    return placement.rounds


def _root(placement: CasePlacement) -> SequenceNode:
    """All orders on a placement."""
    rounds = _rounds(placement)
    return SequenceNode(SequenceProblem(rounds.origin, {}), given_sequences(rounds.run))


def _first_looks(roots: Mapping[Candidate[CasePlacement], SequenceNode], options: SearchOptions
                 ) -> dict[Candidate[CasePlacement], Fitting]:
    """The best order by rule of each, while there is time; a single placement needs no comparison."""
    looks: dict[Candidate[CasePlacement], Fitting] = {}
    budget = options.budget()
    for turn, (entry, root) in enumerate(roots.items() if len(roots) > 1 else ()):
        with budget.limited(_LOOK / (len(roots) - turn)):
            for found in first_orders(root, None, _rounds(entry.of).run.classes):
                looks[entry] = found
    return looks
