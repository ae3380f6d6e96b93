"""Stages that are no chain run published schedules, whose operations hold for what the stages do wait for."""

from __future__ import annotations

import pytest

from weft.app.pipeline.planning.in_a_row import baseline_in_a_row, in_a_row
from weft.solver.baselines import NotApplicable, baseline
from weft.solver.judge.validate import violations
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem

#: The stages that each takes from: two towers of two, joined by the last of the second.
TOWERS = {0: [], 1: [0], 2: [], 3: [1, 2]}


def towers() -> Problem:
    """In a V on two devices, with split backwards."""
    device = {0: 0, 1: 1, 2: 1, 3: 0}
    gives = {s: [t for t, own in TOWERS.items() if s in own] for s in TOWERS}
    blocks = []
    for s, d in device.items():
        blocks += [Block(f"F{s}", BlockKind.FORWARD, (d,), 1.0, (1,), after=tuple(
                       Dependency(f"F{t}") for t in TOWERS[s])),
                   Block(f"I{s}", BlockKind.INPUT_GRAD, (d,), 1.0, (0,), after=tuple(
                       Dependency(f"I{t}") for t in gives[s]) or (Dependency(f"F{s}"),)),
                   Block(f"W{s}", BlockKind.WEIGHT_GRAD, (d,), 1.0, (-1,), after=(Dependency(f"I{s}"),))]
    return Problem("towers", (Device("rank0", None), Device("rank1", None)), tuple(blocks))


@pytest.mark.parametrize("name", ["zb-v", "v-block"])
def test_a_schedule_for_chains_holds_for_towers(name: str) -> None:
    problem = towers()
    with pytest.raises(NotApplicable, match="do not follow each other"):
        baseline(name, problem, 6)
    found = baseline_in_a_row(name, problem, 6)
    assert found.problem is problem and not violations(found)
    chain = in_a_row(problem)
    assert in_a_row(chain) == chain  # a chain stays as it is
    assert {d.block for d in chain.blocks[chain.index["F2"]].after} == {"F1"}
    assert {d.block for d in chain.blocks[chain.index["I1"]].after} == {"I2", "I3"}
    assert chain.blocks[chain.index["W1"]] == problem.blocks[problem.index["W1"]]
