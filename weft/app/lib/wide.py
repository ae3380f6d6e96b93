"""Block problems with choices, jobs and classes as cases: each assignment of few is a placement to choose from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from weft.solver.problem import ProblemError
from weft.solver.wide.problem import WideProblem
from weft.solver.wide.rounds import Rounds
from weft.solver.wide.run import Run

if TYPE_CHECKING:
    from weft.app.lib.sources import MicroBatches

__all__ = ["MOST_LISTED", "WideCase", "assignment_title", "wide_case"]

#: Of more assignments so many are listed; the search itself is over all.
MOST_LISTED = 64


@dataclass(frozen=True)
class WideCase:
    """A wide problem and the run of it; ``reorder``: whether the micro-batches of a job may run in another order."""

    problem: WideProblem
    run: Run
    reorder: bool = False

    @property
    def listed(self) -> list[tuple[Mapping[str, str], Rounds]]:
        """The assignments, of many the first ones, each with its plain problem in rounds; without those that mean
        nothing, as their waits make a circle."""
        found: list[tuple[Mapping[str, str], Rounds]] = []
        for options in islice(self.problem.assignments, MOST_LISTED):
            rounds = Rounds(self.problem.under(options), self.run)
            try:
                rounds.problem  # noqa: B018 (a circle of waits is found here)
            except ProblemError:
                continue
            found.append((options, rounds))
        return found


def wide_case(problem: WideProblem, micro_batches: MicroBatches | None, ratio: Mapping[str, int] | None,
              reorder: bool) -> WideCase:
    """The case of ``problem``. Raises ``ValueError`` for micro-batches that it does not have."""
    if micro_batches is None:
        raise ValueError("a block problem does not say how many micro-batches run: give it (--micro-batches N"
                         + "".join(f", or {example}" for example in _examples(problem)) + ")")
    return WideCase(problem, Run.of(problem, micro_batches, ratio), reorder)


def assignment_title(options: Mapping[str, str]) -> str:
    """The options taken, as people read them."""
    return ", ".join(f"{choice} {option}" for choice, option in options.items())


def _examples(problem: WideProblem) -> list[str]:
    found = []
    if problem.jobs:
        found.append(",".join(f"{job}=N" for job in problem.jobs))
    elif problem.classes:
        found.append("the class of each, as " + ",".join(problem.classes))
    return found
