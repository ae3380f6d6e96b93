"""Stages of groups and of nodes: there and back, and loads as the judge counts them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.support.examples import examples
from tests.support.placements import chain, every_placement, problems
from weft.solver.placement.division import divided, heaviest, nodes_of, parts_of
from weft.solver.placement.groups import contract, groups_of
from weft.solver.placement.problem import PlacementProblem


@settings(max_examples=examples(40), deadline=None)
@given(problems())
def test_loads_are_the_judges_and_nodes_come_back(problem: PlacementProblem) -> None:
    groups = groups_of(problem)
    for stages, _ in zip(every_placement(problem), range(20), strict=False):
        division = divided(groups, parts_of(stages))
        assert division is not None
        loads = [stage.load for stage in stages]
        assert division.value == pytest.approx(max(loads))
        assert loads[heaviest(groups, division)] == pytest.approx(max(loads))
        assert [(kind, tuple(sorted(nodes))) for kind, nodes in nodes_of(groups, division)] == parts_of(stages)


def test_stages_that_take_a_group_apart_are_none_of_its_graph() -> None:
    whole = groups_of(chain([1, 2, 3]))
    joined = contract(whole, [0, 0, 2])
    assert divided(joined, [(0, (0,)), (0, (1, 2))]) is None
    assert divided(joined, [(0, (0, 1)), (0, (2,))]) is not None
