"""Ranks are devices that are no lanes, with their lanes."""

from __future__ import annotations

from weft.runtime.plan.rank_map import RankMap
from weft.solver.problem import Block, BlockKind, Device, Problem

OTHER = BlockKind.OTHER


def test_a_device_and_its_lanes_are_one_rank_wherever_they_stand() -> None:
    problem = Problem("p", (Device("net 1", lane_of="gpu 1"), Device("gpu 0"), Device("gpu 1"),
                            Device("net 0", lane_of="gpu 0")), (
        Block("a", OTHER, (1,), 1), Block("both", OTHER, (3, 0), 1), Block("own", OTHER, (2, 0), 1)))
    ranks = RankMap.of(problem)
    assert len(ranks) == 2 and ranks.devices == (1, 2) and ranks.of_device == (1, 0, 1, 0)
    assert [ranks.of_block(block) for block in range(3)] == [(0,), (0, 1), (1,)]
    assert ranks.pool(0) == (1, 3) and ranks.pool(1) == (2, 0)
    assert ranks.held(1, 2) == (2, 0) and ranks.held(1, 1) == (0,) and ranks.held(0, 2) == ()
    assert ranks.blocks_on(0) == (0, 1) and ranks.blocks_on(1) == (1, 2)


def test_without_lanes_rank_r_is_device_r() -> None:
    problem = Problem("p", (Device("0"), Device("1")), (Block("a", OTHER, (1, 0), 1), Block("b", OTHER, (1,), 1)))
    ranks = RankMap.of(problem)
    assert ranks.devices == ranks.of_device == (0, 1)
    assert ranks.of_block(0) == (1, 0) and ranks.blocks_on(0) == (0,) and ranks.pool(1) == (1,)
