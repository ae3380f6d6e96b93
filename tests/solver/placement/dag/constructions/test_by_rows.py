"""Replicated stages of graphs that are too wide for their levels."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.support.replicated_stages import shared, towers
from weft.solver.cpsat.budget import Budget
from weft.solver.placement import judge, place_graph
from weft.solver.placement.dag.constructions import by_levels, by_rows
from weft.solver.placement.dag.constructions.by_rows import shorten_paths
from weft.solver.placement.dag.levels.ideals import Ideals, TooWide
from weft.solver.placement.dag.levels.level_search import LevelGoal, LevelSolved, first_chain, levels
from weft.solver.placement.groups import Groups, groups_of
from weft.solver.placement.problem import Degree, DeviceKind, Node, PlacementError, PlacementProblem, PlacementTensor
from weft.solver.placement.refusals import NoPlacement


def test_devices_of_several_kinds_are_refused() -> None:
    problem = PlacementProblem("two kinds", (DeviceKind("a", 2), DeviceKind("b", 1)), (Node("n", (1.0, 1.0)),), ())
    with pytest.raises(PlacementError, match="devices of one kind"):
        place_graph(shared(problem, 2))


def test_a_graph_that_is_too_wide_gets_the_best_row_and_a_bound() -> None:
    nodes = tuple(Node(f"n{i}", (1.0 + i / 100,)) for i in range(40))
    found = place_graph(shared(PlacementProblem("wide", (DeviceKind("gpu", 3),), nodes, (), micro_batches=4), 2))
    assert found.solver["by"] == "rows"
    assert found.bound == pytest.approx(sum(node.times[0] or 0 for node in nodes) / 3)
    assert found.bound <= found.objective <= 1.1 * found.bound


def test_a_graph_too_wide_for_its_operators_is_searched_in_longer_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow(groups: Groups, budget: Budget, goal: LevelGoal, **options: Any) -> LevelSolved:
        if groups.count > 12:
            raise TooWide("for this test")
        return levels(groups, budget, goal, **options)

    problem = towers(3, 8, 8)
    exact = place_graph(problem)
    for way in (by_levels, by_rows):
        monkeypatch.setattr(way, "levels", narrow)
    found = place_graph(problem)
    assert (exact.solver["by"], found.solver["by"]) == ("levels", "rows")
    assert exact.bound <= found.objective <= 1.2 * exact.bound
    assert found.bound <= exact.bound
    row = first_chain(groups_of(problem), Budget())
    assert row is not None and found.objective <= row.value
    assert "too wide for proof" in str(found.solver["coarsening"])
    assert not judge.breaches(problem, found.stages)


def test_a_graph_that_is_too_large_is_refused() -> None:
    nodes = tuple(Node(f"n{i}", (1.0,)) for i in range(2001))
    problem = PlacementProblem("huge", (DeviceKind("gpu", 2),), nodes, (), micro_batches=4)
    with pytest.raises(PlacementError, match="huge has 2001 operators to divide"):
        place_graph(shared(problem, 2))


@pytest.mark.parametrize(("memory", "load"), [(1.0, 3.0), (0.9, None)])
def test_where_no_row_fits_a_graph_is_found_or_proven_impossible(memory: float, load: float | None) -> None:
    """Two branches of a forward and a backward, whose gradients meet: in a row the first stage holds two micro-batches,
    beside each other both hold one."""
    nodes = tuple(Node(way + name, (1.0,), 0.0, 1.0 if way == "f" else 0.0, name, way == "b")
                  for way in "fb" for name in "xy")
    problem = PlacementProblem("beside", (DeviceKind("gpu", 2, memory),), nodes, (PlacementTensor(2, (3,), 1.0),), 2,
                               degrees=(Degree(3, ((1.0,),) * 4),))
    if load is None:
        with pytest.raises(NoPlacement):
            place_graph(problem, effort=1.0)
        return
    found = place_graph(problem, effort=1.0)
    assert (found.objective, found.depth, found.solver["by"]) == (load, 1, "rows")


def test_paths_are_made_of_a_few_pieces_of_like_work_and_stay_interchangeable() -> None:
    groups = groups_of(towers(3, 8, 4))
    short = shorten_paths(groups, 4)
    assert sorted(short.least.tolist()) == [3.0] * 12 + [4.0]
    assert sorted(node for members in short.members for node in members) == list(range(25))
    ideals = Ideals(short, Budget(), limit=math.inf)
    assert sorted(map(len, ideals.families)) == [1, 3]
