"""Paths are made of a few pieces of like work."""

from __future__ import annotations

import math

from tests.support.replicated_stages import towers
from weft.solver.cpsat.budget import Budget
from weft.solver.placement.dag.levels.ideals import Ideals
from weft.solver.placement.dag.levels.shorten_paths import shorten_paths
from weft.solver.placement.groups import groups_of


def test_paths_are_made_of_a_few_pieces_of_like_work_and_stay_interchangeable() -> None:
    groups = groups_of(towers(3, 8, 4))
    short = shorten_paths(groups, 4)
    assert sorted(short.least.tolist()) == [3.0] * 12 + [4.0]
    assert sorted(node for members in short.members for node in members) == list(range(25))
    ideals = Ideals(short, Budget(), limit=math.inf)
    assert sorted(map(len, ideals.families)) == [1, 3]
