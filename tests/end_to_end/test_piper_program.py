"""The rival in search time finds the best stages in a row, and looks at all pairs of nested downsets."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings

from tests.oracles.piper import pairs_of_branches, piper
from tests.support.examples import examples
from tests.support.replicated_stages import problems
from tests.support.stage_graphs import forks
from weft.solver.cpsat.budget import Budget
from weft.solver.placement.bracket import simple_bound
from weft.solver.placement.dag.levels.level_search import LevelGoal, levels
from weft.solver.placement.groups import groups_of
from weft.solver.placement.problem import PlacementProblem


@settings(max_examples=examples(60))
@given(problems())
def test_it_finds_what_levels_in_a_row_find(problem: PlacementProblem) -> None:
    groups = groups_of(problem)
    ours = levels(groups, Budget(), LevelGoal(least=simple_bound(groups), in_a_row=True))
    assert piper(groups, 60).value == pytest.approx(ours.stages.value if ours.stages else math.inf, rel=1e-6)


@pytest.mark.parametrize(("branches", "length"), [(1, 3), (2, 2), (3, 2), (2, 4)])
def test_it_looks_at_all_nested_downsets(branches: int, length: int) -> None:
    found = piper(groups_of(forks(branches, length, devices=3)), 60)
    assert (found.downsets, found.pairs) == pairs_of_branches([length] * branches, 1)


def test_it_says_when_its_time_is_over() -> None:
    assert piper(groups_of(forks(3, 3, devices=3)), 0.0).value is None
