"""Problems with choices, jobs and classes as cases, and the questions that mean nothing for them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import chain, keep_or_recompute, pipeline
from weft.app.lib.case import case_of
from weft.app.lib.options import SearchOptions
from weft.solver.problem import Block, BlockKind, Device, Problem, per_class


def two_jobs() -> Problem:
    return Problem("jobs", (Device("gpu"),), tuple(Block(name, BlockKind.OTHER, (0,), 1, job=name)
                                                       for name in ("a", "b")))


def test_each_assignment_is_a_placement() -> None:
    problem = keep_or_recompute(2)
    case = case_of(problem, 4)
    assert len(case.placements) == problem.assignment_count and case.micro_batches == 4
    assert case.placements[0].title == ", ".join(f"{choice} keep" for choice in problem.choices)
    assert [placement.rounds for placement in case.placements] == [None] * len(case.placements)


def test_jobs_are_rounds() -> None:
    case = case_of(two_jobs(), {"a": 8, "b": 4})
    assert case.micro_batches == 4 and [b.name for b in case.placements[0].problem.blocks] == ["a*0", "b", "a*1"]


def test_micro_batches_of_any_class_run_in_rounds_of_the_ratio() -> None:
    blocks = (Block(job, BlockKind.OTHER, (0,), job=job, **per_class(duration={"short": 1, "long": 3}))
              for job in ("a", "b"))
    case = case_of(Problem("jobs", (Device("gpu"),), tuple(blocks)), {"a": 4, "b": 4},
                   SearchOptions(any_class=True, ratio={"a": 2, "b": 2}))
    assert case.micro_batches == 2
    assert [placement.rounds and placement.rounds.run.rounds for placement in case.placements] == [2, 2]


@pytest.mark.parametrize(("source", "micro_batches", "options", "message"), [
    (pipeline(chain(2)), {"a": 3}, SearchOptions(), "names jobs or classes, and this problem has none"),
    (pipeline(chain(2)), 3, SearchOptions(reorder=True), "here all are alike"),
    (pipeline(chain(2)), 3, SearchOptions(ratio={"a": 1}), "this problem has none"),
    (two_jobs(), None, SearchOptions(), "or a=N,b=N"),
    (two_jobs(), {"a": 3}, SearchOptions(), "says nothing of the job 'b'"),
    (two_jobs(), {"a": 3, "b": 2}, SearchOptions(ratio={"a": 2, "b": 1}), "3 is no multiple of 2"),
])
def test_questions_that_mean_nothing(source: Any, micro_batches: Any, options: SearchOptions, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        case_of(source, micro_batches, options)
