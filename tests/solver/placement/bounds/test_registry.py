"""No bound of the registry is above what some placement has."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.support.examples import examples
from tests.support.placements import best_load, problems
from tests.support.replicated_stages import every_row, load
from tests.support.replicated_stages import problems as replicated
from weft.solver.placement import judge
from weft.solver.placement.bounds.registry import BOUNDS, LowerBound, simple_bound
from weft.solver.placement.groups import groups_of
from weft.solver.placement.problem import PlacementProblem

each = pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: bound.name)


def test_every_bound_has_a_name_of_its_own() -> None:
    assert len({bound.name for bound in BOUNDS}) == len(BOUNDS)


@each
@settings(max_examples=examples(60), deadline=None)
@given(problems())
def test_no_placement_is_below_a_bound(bound: type[LowerBound], problem: PlacementProblem) -> None:
    groups = groups_of(problem)
    assert bound.of(groups) <= min(best_load(problem) * (1 + 1e-9), simple_bound(groups))


@each
@settings(max_examples=examples(30), deadline=None)
@given(replicated())
def test_no_placement_with_replicated_stages_is_below_a_bound(bound: type[LowerBound], problem: PlacementProblem
                                                              ) -> None:
    loads = [load(stages) for stages in (judge.stages_of(problem, parts, on) for parts, on in every_row(problem))
             if not judge.breaches(problem, stages)]
    assert bound.of(groups_of(problem)) <= min(loads, default=float("inf")) * (1 + 1e-9)
