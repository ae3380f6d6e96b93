"""Which sequences a partial one leaves, and how they are divided."""

from __future__ import annotations

import pytest

from tests.support.class_runs import pipeline_of_lengths
from weft.solver.choices.sequences.partial import Sequences, any_sequences, given_sequences
from weft.solver.problem import ProblemError
from weft.solver.problem.rounds import Run


def below(partial: Sequences) -> list[tuple[str | None, ...]]:
    if partial.is_one:
        return [partial.only[None]]
    return [row for child in partial.children() for row in below(child)]


def test_children_are_all_orders_each_once() -> None:
    _, run = pipeline_of_lengths(1, [1, 2, 2, 3])
    root = given_sequences(run)
    rows = below(root)
    assert len(rows) == len(set(rows)) == root.count == 12
    assert all(root.allows({None: row}) for row in rows)
    assert not root.allows({None: ("len1", "len1", "len2", "len3")})


def test_both_ends_are_decided_first() -> None:
    _, run = pipeline_of_lengths(1, [1, 2, 1, 2])
    part = given_sequences(run).jobs[None]
    assert part.following == 0
    assert part.placed(0).following == 3
    assert part.placed(0).placed(1).following == 1


def test_any_classes_are_divided_by_their_counts() -> None:
    wide, _ = pipeline_of_lengths(1, [1, 2, 3])
    roots = any_sequences(wide, {None: 4})
    assert len(roots) == 15 and sum(len(below(root)) for root in roots) == 3**4
    with pytest.raises(ProblemError, match="must be at least 1"):
        Run.of_any_class(wide, 0)
    with pytest.raises(ProblemError, match="give how many there are"):
        Run.of_any_class(wide, ["len1", "len2"])
