"""Orders of blocks by demand: each right behind what it waits for."""

from __future__ import annotations

import pytest

from tests.oracles.generated import drawn
from tests.oracles.streams import drawn_stream
from weft.solver.baselines.rivals.demand import block_places, demanded
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem
from weft.solver.ticks import TickProblem


@pytest.mark.parametrize("number", range(40))
def test_all_ways_keep_to_what_blocks_wait_for(number: int) -> None:
    instance = TickProblem.of(drawn(number).problem)
    for places in block_places(instance):
        assert len(places) == len(instance.blocks)
        assert all(places[arc.source] < places[arc.target] for arc in instance.arcs if not arc.distance)


def test_loads_come_right_before_what_they_are_for() -> None:
    """However the file has them."""
    problem = drawn_stream(3, 2, 0)
    by_kind = tuple(sorted(problem.blocks, key=lambda block: "LCS".index(block.name[0])))
    instance = TickProblem.of(Problem("by kind", problem.devices, by_kind))
    stores = range(len(by_kind) - 3, len(by_kind))
    found = [by_kind[i].name for i in demanded(instance, [()] * len(by_kind), stores)]
    assert found == [block.name for block in problem.blocks]


def test_the_key_orders_what_one_block_waits_for() -> None:
    names = ("a", "b", "c")
    blocks = (*(Block(name, BlockKind.OTHER, (0,), 1) for name in names),
              Block("end", BlockKind.OTHER, (0,), 1, after=tuple(map(Dependency, names))))
    instance = TickProblem.of(Problem("p", (Device("gpu"),), blocks))
    assert demanded(instance, [(3,), (1,), (2,), (0,)], [3]) == [1, 2, 0, 3]
