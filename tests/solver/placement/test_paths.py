"""A graph as paths: which there are, which follow which, which are interchangeable."""

from __future__ import annotations

from tests.support.stage_graphs import forks
from weft.solver.placement.groups import groups_of
from weft.solver.placement.paths import Paths


def test_equal_branches_are_one_family_before_what_joins_them() -> None:
    groups = groups_of(forks(3, 2, devices=2))
    paths = Paths.of(groups)
    assert sorted(map(len, paths.paths)) == [1, 2, 2, 2]
    assert paths.paths[0] == (groups.count - 1,)  # from the end
    assert [len(family) for family in paths.families] == [1, 3]
    assert paths.family == (0, 1, 1, 1) and paths.has_twin == (False, False, True, True)
    assert paths.followers == ((), (0,), (0,), (0,))


def test_branches_can_be_told_apart() -> None:
    groups = groups_of(forks(3, 2, devices=2))
    assert [len(family) for family in Paths.of(groups, twins=False).families] == [1, 1, 1, 1]
