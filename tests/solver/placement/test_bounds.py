"""No bound of the registry is above what some placement has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings

from tests.support.examples import examples
from tests.support.placements import best_load, problems
from tests.support.replicated_stages import every_row, load
from tests.support.replicated_stages import problems as replicated
from weft.solver.placement import judge
from weft.solver.placement.bounds import BOUNDS, simple_bound
from weft.solver.placement.groups import Groups, groups_of
from weft.solver.placement.problem import PlacementProblem

each = pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)


@each
@settings(max_examples=examples(60), deadline=None)
@given(problems())
def test_no_placement_is_below_a_bound(bound: Callable[[Groups], float], problem: PlacementProblem) -> None:
    groups = groups_of(problem)
    assert bound(groups) <= min(best_load(problem) * (1 + 1e-9), simple_bound(groups))


@each
@settings(max_examples=examples(30), deadline=None)
@given(replicated())
def test_no_placement_with_replicated_stages_is_below_a_bound(bound: Callable[[Groups], float],
                                                              problem: PlacementProblem) -> None:
    loads = [load(stages) for stages in (judge.stages_of(problem, parts, on) for parts, on in every_row(problem))
             if not judge.breaches(problem, stages)]
    assert bound(groups_of(problem)) <= min(loads, default=float("inf")) * (1 + 1e-9)
