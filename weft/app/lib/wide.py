"""Block problems with choices, jobs and classes as cases: if there are few assignments, each is a candidate
placement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from weft.solver.choices.partial import first_looks
from weft.solver.problem import Problem, ProblemError
from weft.solver.problem.rounds import Rounds, Run

if TYPE_CHECKING:
    from weft.app.lib.options import SearchOptions
    from weft.app.lib.sources import MicroBatches


@dataclass(frozen=True)
class WideCase:
    """A wide problem and its run; ``reorder``: whether the micro-batches of a job may be reordered; ``any_class``:
    whether each may be of any class, of which ``run`` has only the first."""

    problem: Problem
    run: Run
    reorder: bool = False
    any_class: bool = False

    @property
    def listed(self) -> list[tuple[Mapping[str, str], Rounds]]:
        """The assignments, or some if there are many, each with its plain problem in rounds; without those whose waits
        form a cycle. If micro-batches may be of any class, each with all of one class."""
        found: list[tuple[Mapping[str, str], Rounds]] = []
        runs = _of_one_class(self.problem, self.run) if self.any_class else [self.run]
        for options, run in product(first_looks(self.problem), runs):
            rounds = Rounds(self.problem.under(options), run)
            try:
                rounds.problem  # noqa: B018 (a circle of waits is found here)
            except ProblemError:
                continue
            found.append((options, rounds))
        return found


def wide_case(problem: Problem, micro_batches: MicroBatches | None, options: SearchOptions | None) -> WideCase:
    """The case of ``problem``. Raises ``ValueError`` for nonexistent micro-batches."""
    ratio, reorder, any_class = (None, False, False) if options is None else (
        options.ratio, options.reorder, options.any_class)
    if micro_batches is None:
        raise ValueError("a block problem does not say how many micro-batches run: give it (--micro-batches N"
                         + "".join(f", or {example}" for example in _examples(problem)) + ")")
    if reorder and not problem.classes:
        raise ValueError(f"{problem.name}: reorder is for micro-batches that differ, and here all are alike: leave it "
                         "out")
    if not any_class:
        return WideCase(problem, Run.of(problem, micro_batches, ratio), reorder)
    if len(problem.classes) < 2:
        raise ValueError(f"{problem.name}: micro-batches can be of any class only where there are several: leave "
                         "any-class out")
    return WideCase(problem, Run.of_any_class(problem, micro_batches, ratio), reorder, any_class)


def _of_one_class(problem: Problem, run: Run) -> list[Run]:
    """The run with all micro-batches of one class, for each class."""
    names = {job: problem.classes_of(job) or (None,) for job in run.classes}
    return [replace(run, classes={job: (names[job][min(number, len(names[job]) - 1)],) * len(row)
                                  for job, row in run.classes.items()})
            for number in range(max(map(len, names.values())))]


def _examples(problem: Problem) -> list[str]:
    if problem.jobs:
        return [",".join(f"{job}=N" for job in problem.jobs)]
    return ["the class of each, as " + ",".join(problem.classes)] if problem.classes else []
