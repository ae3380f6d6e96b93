"""Which assignments get a first look: known schedules are made on them, so none of these is better than the answer."""

from __future__ import annotations

from collections.abc import Iterator

from weft.solver.wide.problem import WideProblem

__all__ = ["MOST_LOOKS", "first_looks"]

#: All of so many assignments: the known schedules of one take a tenth of a second or so.
MOST_LOOKS = 16


def first_looks(problem: WideProblem) -> Iterator[dict[str, str]]:
    """All assignments of few; of more those that take the first, the second ... option of every choice."""
    if problem.assignment_count <= MOST_LOOKS:
        yield from problem.assignments
        return
    for place in range(max(map(len, problem.choices.values()))):
        yield {choice: options[min(place, len(options) - 1)] for choice, options in problem.choices.items()}
