"""The instruction text, programs, and the plan file.

Ranks are devices that are no lanes, with their lanes.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from weft.runtime.plan.program import Program, ProgramError, RankMap, parse_instruction
from weft.solver.problem import Block, BlockKind, Device, Problem


@pytest.mark.parametrize("text", [
    "", "2F", "F0", "2F0 ", " 2F0", "2F0typo", "2X0", "02F0", "2F00", "-1F0", "2f0", "٢F0", "2F0\n",
    "SEND 2F0", "SEND 2F0<1", "RECV 2F0>1", "send 2F0>1", "SEND  2F0>1", "SEND 2F0>01", "SEND SEND 2F0>1>1",
    "REDUCE", "REDUCE 3+0", "REDUCE 0+0", "REDUCE 0+", "REDUCE 00", "REDUCE 0 + 3", "reduce 0", "REDUCE a",
    "embed", "embed[]", "embed[-1]", "2F[0]", '"plain"[0]', '"bad \\x"[0]', "a b[0]",
])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ProgramError, match="is no instruction"):
        parse_instruction(text)


def test_a_bad_instruction_is_named_with_its_place() -> None:
    with pytest.raises(ProgramError, match="rank 1, step 2: '1Q0' is no instruction"):
        Program.from_text([["0F0"], ["1F0", "1B0", "1Q0"]])


def test_planning_needs_no_torch() -> None:
    code = "import sys, weft.runtime.plan.plan, weft.runtime.plan.timeline; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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
