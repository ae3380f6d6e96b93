"""An order packed under smaller and smaller limits: a first placement of a graph of any size."""

from __future__ import annotations

from tests.support.placements import chain
from weft.solver.cpsat.budget import Budget
from weft.solver.placement.chain.chain_bracket import ChainBracket
from weft.solver.placement.chain.constructions.packing import Packing, best_packing
from weft.solver.placement.groups import Division, groups_of
from weft.solver.placement.params import PlacementParams


def test_limits_fall_until_packing_fails() -> None:
    groups = groups_of(chain([3, 1, 4, 1, 5, 2], devices=3))
    found: list[Division] = []
    best_packing(groups, range(6), 16 / 3, Budget(), found.append)
    values = [division.value for division in found]
    assert values == sorted(values, reverse=True) and values[-1] == 7.0  # 3 1 | 4 1 | 5 2, the best there is


def test_packing_keeps_to_memory_by_position() -> None:
    groups = groups_of(chain([1, 1, 1, 1], memory=3, flying=[1, 1, 1, 1]))
    found: list[Division] = []
    best_packing(groups, range(4), 2.0, Budget(), found.append)
    assert [len(inside) for _, inside in found[-1].stages] == [1, 3]


def test_packing_is_for_graphs_too_large_to_be_sliced() -> None:
    problem = chain([1.0] * 30, devices=3)
    assert Packing.of(ChainBracket(problem, Budget())) is None
    small = PlacementParams(coarse_groups=10)
    bracket = ChainBracket(problem, Budget(), params=small)
    technique = Packing.of(bracket)
    assert technique is not None
    bracket.run(technique, 1.0)
    assert bracket.objective == 10.0 and bracket.counts.of("packing").improvements == 1
