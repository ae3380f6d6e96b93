"""What repeats in a run, and what a run must say."""

from __future__ import annotations

from typing import Any

import pytest

from weft.solver.problem import BlockKind, Device, ProblemError
from weft.solver.wide.block import WideBlock
from weft.solver.wide.problem import WideProblem
from weft.solver.wide.run import Run


def two_jobs() -> WideProblem:
    return WideProblem("jobs", (Device("gpu"),), tuple(WideBlock(name, BlockKind.OTHER, (0,), 1, job=name)
                                                       for name in ("a", "b")))


def two_classes() -> WideProblem:
    return WideProblem("classes", (Device("gpu"),), (WideBlock("x", BlockKind.OTHER, (0,), {"s": 1, "l": 2}),))


def test_rounds_are_as_short_as_they_can_be() -> None:
    assert Run.of(two_jobs(), 6).rounds == 6
    assert Run.of(two_jobs(), {"a": 6, "b": 4}).rounds == 2
    assert Run.of(two_jobs(), {"a": 6, "b": 4}).per_round("a") == (None, None, None)
    assert Run.of(two_classes(), ["s", "l", "l"] * 3).rounds == 3
    assert Run.of(two_classes(), ["s", "l", "l"]).rounds == 1
    assert Run.of(two_classes(), ["s"] * 4).rounds == 4


def test_a_ratio_fixes_the_round() -> None:
    assert Run.of(two_jobs(), {"a": 8, "b": 4}, {"a": 4, "b": 2}).rounds == 2


@pytest.mark.parametrize(("problem", "counted", "ratio", "message"), [
    (two_jobs(), {"a": 3, "b": 2}, {"a": 2, "b": 1}, "3 is no multiple of 2"),
    (two_jobs(), {"a": 4, "b": 4}, {"a": 2, "b": 1}, "the ratio 2:1 is not that of the micro-batches, 4:4"),
    (two_jobs(), {"a": 4, "b": 4}, {"a": 2}, "the ratio is of the jobs 'a', and there are 'a', 'b'"),
    (two_jobs(), {"a": 4, "c": 4}, None, "the job 'c' has no block"),
    (two_jobs(), {"a": 4}, None, "says nothing of the job 'b'"),
    (two_jobs(), ["s"], None, "say whose micro-batches they are"),
    (two_classes(), 4, None, "list the class of each"),
    (two_classes(), ["s", "x"], None, "there is no class 'x'"),
    (two_jobs(), 0, None, "must be at least 1"),
])
def test_what_a_run_leaves_open_is_refused(problem: WideProblem, counted: Any, ratio: Any, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        Run.of(problem, counted, ratio)
