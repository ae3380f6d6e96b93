"""Operations are called as their user wrote them."""

from __future__ import annotations

from tests.support.builders import chain, pipeline
from tests.support.wide_problems import schedule_of_jobs, schedule_of_rounds
from weft.solver import BlockKind, Device, Operation, baseline
from weft.solver.names import Names
from weft.solver.problem import Block, Problem, per_class
from weft.solver.problem.rounds import Run


def test_a_plain_schedule_has_its_own_names() -> None:
    schedule = baseline("1f1b", pipeline(chain(2)), 3)
    names = Names(schedule)
    operation = schedule.operations[-1]
    block = schedule.problem.blocks[operation.block]
    assert names.operation(operation) == f"{block.name} of micro-batch {operation.micro_batch}"
    assert (names.job(0), names.class_of(0), names.jobs, names.classes) == (None, None, (), {})
    assert (names.period, names.origin(3)) == ("micro-batch", 3)


def test_copies_go_by_their_blocks_and_rounds_by_their_micro_batches() -> None:
    schedule = schedule_of_jobs()
    names = Names(schedule)
    blocks = [block.name for block in schedule.problem.blocks]
    copy, search = blocks.index("A0*1"), blocks.index("B1")
    assert names.block(copy) == "A0" and names.origin(copy) == 0
    assert names.operation(Operation(copy, 1, 0.0, 1.0)) == "A0 of micro-batch 3 of chat"
    assert names.operation(Operation(search, 1, 0.0, 1.0)) == "B1 of micro-batch 1 of search"
    assert (names.class_of(copy), names.class_of(search)) == ("long", None)
    assert names.classes == {"chat": ("short", "long", "short", "long")}
    assert names.period == "round of 2 micro-batches of chat and 1 of search"


def test_one_job_is_not_named() -> None:
    block = Block("F", BlockKind.FORWARD, (0,), **per_class(duration={"short": 1, "long": 2}), job="one")
    wide = Problem("lengths", (Device("gpu"),), (block,))
    names = Names(schedule_of_rounds(wide, Run.of(wide, {"one": ["short", "long"] * 2})))
    assert names.job(0) is None
    assert names.operation(Operation(1, 1, 0.0, 1.0)) == "F of micro-batch 3"
    assert names.period == "round of 2 micro-batches"
