"""The judge of steps: it accepts what the search makes, and hears of every change to it."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.stage_graphs import forks
from weft.solver.placement.joint.candidates import Sizes, candidate_of
from weft.solver.placement.joint.cuts import cut_of
from weft.solver.placement.joint.sized import affine
from weft.solver.placement.joint.sized_judge import faults
from weft.solver.portfolio import Candidate
from weft.solver.problem import Block

SIZED = affine(forks(2, 1, devices=3, transfer=0.5, held=1.0, memory=9.0), 1, (1, 2), 0.25, 4)
CUT = cut_of(SIZED, tuple((0, (node,)) for node in range(3)))
SIZES = (1, 2, 2)


def _candidate() -> Candidate[Sizes]:
    return candidate_of(CUT, SIZES, 0.0)


def _with_block(name: str, **changes: object) -> list[str]:
    """The faults of the schedule whose block of that name is changed."""
    schedule = _candidate().start
    assert schedule is not None

    def changed(block: Block) -> Block:
        return dataclasses.replace(block, **changes) if block.name == name else block  # type: ignore[arg-type]

    problem = dataclasses.replace(schedule.problem, blocks=tuple(map(changed, schedule.problem.blocks)))
    return faults(SIZED, CUT.parts, CUT.devices, SIZES, dataclasses.replace(schedule, problem=problem))


def test_what_the_search_makes_is_accepted() -> None:
    schedule = _candidate().start
    assert schedule is not None
    assert [block.name for block in schedule.problem.blocks][:4] == ["F0.0", "F0.1", "F1", "F2"]
    assert faults(SIZED, CUT.parts, CUT.devices, SIZES, schedule) == []


@pytest.mark.parametrize(("block", "changes", "what"), [
    ("F0.1", {"duration": 9.0}, "block 'F0.1' takes 9, its operators and transfers"),
    ("B2", {"memory": (0.0,)}, "block 'B2' changes memory by 0"),
    ("F2", {"after": ()}, "block 'F2' does not wait for 'F0.0', which has its sample 0"),
    ("B0.1", {"after": ()}, "block 'B0.1' does not wait for 'B2', which has its sample 1"),
])
def test_a_changed_block_is_heard_of(block: str, changes: dict[str, object], what: str) -> None:
    assert any(what in fault for fault in _with_block(block, **changes))


def test_a_changed_placement_is_heard_of() -> None:
    schedule = _candidate().start
    assert schedule is not None
    merged = ((0, (0, 2)), (0, (1,)), (0, ()))
    assert any("comes before" in fault for fault in faults(SIZED, merged, CUT.devices, SIZES, schedule))
    assert any("operators without a stage" in fault
               for fault in faults(SIZED, CUT.parts[:2], CUT.devices, SIZES, schedule))
    assert any("there are no costs" in fault for fault in faults(SIZED, CUT.parts, CUT.devices, (1, 2, 4), schedule))
    assert any("on gpu, there are" in fault for fault in faults(SIZED, CUT.parts, (2, 1, 1), SIZES, schedule))
    assert any("are not the mini-batch" in fault for fault in faults(
        SIZED, CUT.parts, CUT.devices, SIZES, dataclasses.replace(schedule, micro_batches=3)))
