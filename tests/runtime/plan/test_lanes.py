"""Queues of a rank with lanes, and what they wait for of each other's memory.

Fewer micro-batches of a plan keep their order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.builders import chain, pipeline
from tests.support.lane_problems import laned_schedule
from weft.runtime.plan.buffers import BufferTable
from weft.runtime.plan.check import check_program
from weft.runtime.plan.lanes import check_pool_memory, memory_waits, queues, shortened
from weft.runtime.plan.plan import plan_from_json, plan_of, plan_to_json
from weft.runtime.plan.program import BlockWork, Program, ProgramError, Recv, Reduce, Send
from weft.solver import Block, BlockKind, Dependency, Device, Operation, Problem, Schedule
from weft.solver.baselines import baseline
from weft.solver.io.entries import FormatError

LATE = Problem("late", (Device("gpu", 2), Device("copies", lane_of="gpu")), (
    Block("F", BlockKind.FORWARD, (0,), 1, (2,)),
    Block("O", BlockKind.OTHER, (1,), 1, (-2,), after=(Dependency("F"),))), memory_unit="B")
#: Each forward starts when the copy of the one before has ended.
IN_TURN = Schedule(LATE, 2, (Operation(0, 0, 0, 1), Operation(1, 0, 1, 2), Operation(0, 1, 2, 3),
                             Operation(1, 1, 3, 4)), 0.0)


def test_a_device_and_each_of_its_lanes_run_their_part_of_the_list() -> None:
    plan = plan_of(IN_TURN)
    assert plan.program.to_text() == (("F[0]", "O[0]", "F[1]", "O[1]"),)
    assert queues(plan, 0) == {0: (BlockWork("F", 0), BlockWork("F", 1)), 1: (BlockWork("O", 0), BlockWork("O", 1))}


def test_what_takes_waits_for_what_has_given_back_on_another_lane() -> None:
    plan = plan_of(IN_TURN)
    assert memory_waits(plan, 0) == {BlockWork("F", 1): (BlockWork("O", 0),)}
    unlimited = replace(LATE, devices=(Device("gpu"), LATE.devices[1]))
    assert not memory_waits(plan_of(replace(IN_TURN, problem=unlimited)), 0)


def test_slots_must_fit_beside_the_planned_peak() -> None:
    plan, table = plan_of(IN_TURN), BufferTable((64,), (), (), ())
    check_pool_memory(plan, 0, table, 64)
    with pytest.raises(ProgramError, match="rank 0's blocks hold 2 bytes at once and its 1 message buffers 64 more, "
                                           "but device 'gpu' has 2 and 63 in reserve"):
        check_pool_memory(plan, 0, table, 63)


def _lanes(value: dict[str, Any]) -> None:
    value["ranks"][1]["lanes"].reverse()


def _no_lanes(value: dict[str, Any]) -> None:
    del value["ranks"][0]["lanes"]


def _swapped(value: dict[str, Any]) -> None:
    own = value["ranks"][0]["instructions"]
    first = next(i for i, one in enumerate(own) if one["do"] == '"send F1"[0]')
    own.insert(0, own.pop(first))


@pytest.mark.parametrize(("change", "message"), [
    (_lanes, r"ranks\[1\]: lanes is \['gpu 1 copies', 'gpu 1 network'\], but the lanes of 'gpu 1' are"),
    (_no_lanes, r"ranks\[0\]: lacks the field 'lanes'|ranks\[0\]: .*lanes"),
    (_swapped, r'"send F1"\[0\] needs the result of F0\[0\], which rank 0 has neither computed nor received by then'),
])
def test_a_plan_file_with_other_lanes_or_orders_is_refused(change: Callable[[dict[str, Any]], None],
                                                           message: str) -> None:
    value = plan_to_json(plan_of(laned_schedule()))
    assert [sorted(rank) for rank in value["ranks"]] == [["device", "instructions", "lanes"]] * 2
    change(value)
    with pytest.raises(FormatError, match=message):
        plan_from_json(value)


def test_lists_that_wait_for_each_other_over_lanes_are_refused() -> None:
    """Two blocks on lanes of both ranks, in one order on one rank and another on the other: lanes would get by with
    that, but the list is what is proven."""
    problem = Problem("two", (Device("0"), Device("1"), Device("a", lane_of="0"), Device("b", lane_of="1")), (
        Block("x", BlockKind.OTHER, (2, 3), 1), Block("y", BlockKind.OTHER, (0, 1), 1)))
    check_program(Program.from_text([["x[0]", "y[0]"], ["x[0]", "y[0]"]]), problem, 1)
    with pytest.raises(ProgramError, match="the ranks wait for each other and none can go on"):
        check_program(Program.from_text([["x[0]", "y[0]"], ["y[0]", "x[0]"]]), problem, 1)
    with pytest.raises(ProgramError, match="the program has 4 ranks for 2 devices that are no lanes"):
        check_program(Program.from_text([["y[0]"], ["y[0]"], ["x[0]"], ["x[0]"]]), problem, 1)


def test_the_first_micro_batches_run_in_the_order_that_they_had() -> None:
    plan = plan_of(baseline("1f1b", pipeline(chain(3)), 6))
    assert shortened(plan, 6) is plan
    for count in range(1, 6):
        found = shortened(plan, count)
        assert found.micro_batches == count
        for own, before in zip(found.program.ranks, plan.program.ranks, strict=True):
            assert [i for i in own if not isinstance(i, Send | Recv | Reduce)] == [
                i for i in before if not isinstance(i, Send | Recv | Reduce) and i.micro_batch < count]
            assert any(isinstance(i, Reduce) for i in own)
