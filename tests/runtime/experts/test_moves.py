from __future__ import annotations

from weft.runtime.experts.layer import ExpertPlacement
from weft.runtime.experts.moves import moved


def test_only_what_is_not_there_moves_and_copies_take_turns() -> None:
    before = ExpertPlacement(4, ((0, 1), (2,), (3,)))
    after = ExpertPlacement(4, ((0, 1, 2, 3), (2,), (0,)))
    assert list(moved(before, after)) == [(0, 0, 2), (0, 1, 3), (2, 3, 0)]
    assert not list(moved(after, after))
    assert not list(moved(ExpertPlacement.replicated(8, 4), ExpertPlacement.even(8, 4)))
