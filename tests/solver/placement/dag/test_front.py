"""The front of largest load and depth, against all graphs of stages of small problems."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import strategies as st

from tests.support.examples import for_all
from tests.support.placements import every_placement
from tests.support.stage_graphs import EFFORT, forks, problems
from weft.solver.cpsat.budget import Budget
from weft.solver.placement import DeviceKind, Node, PlacementProblem, PlacementTensor, judge
from weft.solver.placement.dag.front import front
from weft.solver.placement.dag.stage_dag import stages_by_depth
from weft.solver.placement.params import PARAMS


def best_by_depth(problem: PlacementProblem, most: float = math.inf) -> list[tuple[float, int]]:
    """The least load of every depth for which it is less than of all smaller depths, by trying all graphs of stages."""
    least: dict[int, float] = {}
    for row in every_placement(dataclasses.replace(problem, micro_batches=1)):
        stages, _, deep = stages_by_depth(problem, [(stage.kind, stage.nodes) for stage in row])
        if not judge.breaches(problem, stages):
            load = max(stage.load for stage in stages)
            least[max(deep)] = min(least.get(max(deep), math.inf), load)
    found = [(load, depth) for depth, load in least.items()
             if load < most and all(load < other - 1e-9 for less, other in least.items() if less < depth)]
    return sorted(found)


def offered(problem: PlacementProblem, most: float = math.inf, effort: float | None = None) -> list[tuple[float, int]]:
    """The same as the search finds it; every point is judged."""
    found = front(problem, Budget(deterministic=effort), most)
    assert found.whole
    for point in found.points:
        stages, _, deep = stages_by_depth(problem, point.parts, point.devices)
        assert not judge.breaches(problem, stages)
        assert max(stage.load for stage in stages) == pytest.approx(point.load)
        assert max(deep) <= point.depth
    return [(point.load, point.depth) for point in found.points]


@for_all(problems(), tries=60)
def test_levels_find_every_trade_off(problem: PlacementProblem) -> None:
    wanted = best_by_depth(problem)
    found = offered(problem)
    assert [depth for _, depth in found] == [depth for _, depth in wanted]
    assert [load for load, _ in found] == pytest.approx([load for load, _ in wanted], rel=1e-6)


@for_all(problems(kinds=2), st.sampled_from([0.8, 1.5]), tries=15)
def test_the_encoding_finds_every_trade_off_below_what_is_wanted(problem: PlacementProblem, share: float) -> None:
    """On devices of two kinds, which the levels are not for."""
    every = best_by_depth(problem)
    most = share * every[0][0] + 0.25 if every else 1.0
    wanted = [(load, depth) for load, depth in every if load < most]
    found = offered(problem, most, 4 * EFFORT)
    assert [depth for _, depth in found] == [depth for _, depth in wanted]
    assert [load for load, _ in found] == pytest.approx([load for load, _ in wanted], rel=1e-6)


@pytest.mark.parametrize("devices", [(1, 1), (2, 0)])
def test_a_trade_off_exactly_as_large_as_what_is_wanted_is_none_that_is_missing(devices: tuple[int, int]) -> None:
    """Its bound is a rounded one, below it."""
    kinds = tuple(DeviceKind(f"k{k}", count) for k, count in enumerate(devices))
    problem = PlacementProblem("tiny", kinds, (Node("a", (0, 0)), Node("b", (2, 0)), Node("c", (2, 4))),
                               (PlacementTensor(1, (2,), 0.5),))
    narrow = dataclasses.replace(PARAMS, level_groups=1)
    every = front(problem, Budget(deterministic=EFFORT), math.inf, narrow).points
    assert [(point.load, point.depth) for point in every] == best_by_depth(problem)
    for point in every:
        found = front(problem, Budget(deterministic=EFFORT), point.load, narrow)
        assert found.whole and [each.load for each in found.points] == [p.load for p in every if p.load < point.load]


def test_a_graph_too_wide_for_levels_has_its_front_by_the_encoding() -> None:
    problem = forks(2, 3, devices=3, times=(2.0, 2.0, 3.0), end=1.0)
    by_levels = offered(problem)
    narrow = front(problem, Budget(deterministic=EFFORT), math.inf, dataclasses.replace(PARAMS, level_groups=1))
    assert [(point.load, point.depth) for point in narrow.points] == by_levels
    assert len(by_levels) == 3
