"""The best cuts into replicated stages, against all of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.support.examples import examples
from tests.support.replicated_stages import every_row, load, problems
from weft.solver.cpsat.budget import Budget
from weft.solver.placement import judge
from weft.solver.placement.bounds.registry import simple_bound
from weft.solver.placement.dag.levels.level_search import LevelGoal, first_chain, levels
from weft.solver.placement.groups import groups_of
from weft.solver.placement.orders.slice_replicated import slice_replicated
from weft.solver.placement.problem import PlacementProblem


@settings(max_examples=examples(60), deadline=None)
@given(problems())
def test_rows_of_replicated_stages_are_the_best_of_all_rows_and_of_an_order(problem: PlacementProblem) -> None:
    rows, in_order = [], []
    for parts, on in every_row(problem):
        stages = judge.stages_of(problem, parts, on)
        if not judge.breaches(problem, stages):
            rows.append(load(stages))
            if [n for _, nodes in parts for n in nodes] == sorted(n for _, nodes in parts for n in nodes):
                in_order.append(load(stages))
    groups = groups_of(problem)
    found = levels(groups, Budget(), LevelGoal(least=simple_bound(groups), in_a_row=True)).stages
    assert (found.value if found else float("inf")) == pytest.approx(min(rows, default=float("inf")), rel=1e-6)
    place = groups.spread(range(groups.count))
    sliced = slice_replicated(groups, place)
    assert (sliced.value if sliced else float("inf")) == pytest.approx(min(in_order, default=float("inf")))
    for slicing in (found, sliced, first_chain(groups, Budget())):
        if slicing is not None:
            parts = [(kind, [n for g in inside for n in groups.members[g]]) for kind, inside in slicing.stages]
            stages = judge.stages_of(problem, parts, slicing.devices)
            assert not judge.breaches(problem, stages)
            assert load(stages) == pytest.approx(slicing.value)
