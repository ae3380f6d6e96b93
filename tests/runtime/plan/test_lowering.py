"""Lowering by the end-key rule, and the proof that refuses what would hang or train wrongly."""

from __future__ import annotations

import pytest

from weft.runtime.plan.check import check_program
from weft.runtime.plan.lowering import LoweringError, lower
from weft.runtime.plan.program import Program, ProgramError
from weft.solver.problem import Block, BlockKind, Dependency, Device, Link, Problem
from weft.solver.schedule import Operation, Schedule
from weft.solver.timing import Orders, time_orders

F, B, I, W, O = (BlockKind.FORWARD, BlockKind.BACKWARD, BlockKind.INPUT_GRAD, BlockKind.WEIGHT_GRAD, BlockKind.OTHER)  # noqa: E741

PIPE = Problem("pipe", (Device("0"), Device("1")), (
    Block("f0", F, (0,), 1),
    Block("f1", F, (1,), 1, after=(Dependency("f0"),)),
    Block("i1", I, (1,), 1, after=(Dependency("f1"),)),
    Block("w1", W, (1,), 1, after=(Dependency("i1"),)),
    Block("b0", B, (0,), 2, after=(Dependency("i1"),)),
))
GOOD = (("0F0", "SEND 0F0>1", "0F1", "SEND 0F1>1", "RECV 1I0<1", "0B0", "RECV 1I1<1", "0B1"),
        ("RECV 0F0<0", "1F0", "RECV 0F1<0", "1I0", "SEND 1I0>0", "1F1", "1I1", "SEND 1I1>0", "1W0", "1W1"))
GOOD_ORDERS: Orders = [[(0, 0), (0, 1), (4, 0), (4, 1)], [(1, 0), (2, 0), (1, 1), (2, 1), (3, 0), (3, 1)]]


def schedule_of(problem: Problem, micro_batches: int, orders: Orders) -> Schedule:
    return Schedule(problem, micro_batches, time_orders(problem, micro_batches, orders), 0.0)


def test_messages_stand_where_their_producer_ends() -> None:
    # 0F1 and 1F0 both end at 2: computing comes first on ties, so rank 1 posts RECV 0F1 after 1F0 and before 1I0.
    assert lower(schedule_of(PIPE, 2, GOOD_ORDERS)).to_text() == GOOD


def test_a_receive_is_posted_before_the_instruction_that_runs_while_the_result_becomes_ready() -> None:
    problem = Problem("wide", (Device("0"), Device("1")), (
        Block("long", O, (1,), 10), Block("a", O, (0,), 3), Block("b", O, (1,), 1, after=(Dependency("a"),))))
    program = lower(schedule_of(problem, 1, [[(1, 0)], [(0, 0), (2, 0)]]))
    assert program.to_text()[1] == ("RECV a[0]<0", "long[0]", "b[0]")


def test_a_result_is_sent_once_to_each_rank_that_needs_it() -> None:
    problem = Problem("fan", (Device("0"), Device("1"), Device("2")), (
        Block("a", O, (0,), 1),
        Block("b", O, (1,), 1, after=(Dependency("a", 1), Dependency("a", 2, distance=1))),
        Block("c", O, (1,), 1, after=(Dependency("a"),)),
        Block("d", O, (2,), 1, after=(Dependency("a"),)),
    ))
    program = lower(schedule_of(problem, 1, [[(0, 0)], [(1, 0), (2, 0)], [(3, 0)]]))
    assert program.to_text() == (("a[0]", "SEND a[0]>1", "SEND a[0]>2"), ("RECV a[0]<0", "b[0]", "c[0]"),
                                 ("RECV a[0]<0", "d[0]"))


def test_a_result_that_only_the_next_micro_batch_needs_is_not_sent_from_the_last() -> None:
    problem = Problem("next", (Device("0"), Device("1")), (
        Block("a", O, (0,), 1), Block("b", O, (1,), 1, after=(Dependency("a", distance=1),))))
    program = lower(schedule_of(problem, 2, [[(0, 0), (0, 1)], [(1, 0), (1, 1)]]))
    assert program.to_text()[0] == ("a[0]", "SEND a[0]>1", "a[1]")


def test_a_block_on_several_devices_stands_in_each_row_and_sends_over_the_link_named() -> None:
    problem = Problem("tensor parallel", (Device("0"), Device("1"), Device("2")), (
        Block("both", O, (0, 1), 1),
        Block("next", O, (2,), 1, after=(Dependency("both", 1, "one to two"),)),
    ), (Link("one to two", 1, 2),))
    program = lower(schedule_of(problem, 1, [[(0, 0)], [(0, 0)], [(1, 0)]]))
    assert program.to_text() == (("both[0]",), ("both[0]", "SEND both[0]>2"), ("RECV both[0]<1", "next[0]"))
    check_program(program, problem, 1)


def test_a_duration_below_the_resolution_of_floats_still_comes_after_its_message() -> None:
    problem = Problem("tiny", (Device("0"), Device("1")), (
        Block("long", O, (0,), 1e17), Block("tiny", O, (1,), 1e-9, after=(Dependency("long"),))))
    program = lower(schedule_of(problem, 1, [[(0, 0)], [(1, 0)]]))
    assert program.to_text()[1] == ("RECV long[0]<0", "tiny[0]")


def test_an_incomplete_or_contradictory_schedule_is_refused() -> None:
    good = schedule_of(PIPE, 2, GOOD_ORDERS)
    with pytest.raises(LoweringError, match="every block of micro-batches 0 to 1 once: see block 'f0'"):
        lower(good.with_operations([o for o in good.operations if (o.block, o.micro_batch) != (0, 1)]))
    swapped = [Operation(o.block, 1 - o.micro_batch, o.start, o.end) if o.block == 0 else o for o in good.operations]
    lower(good.with_operations(swapped))  # another order of forwards is late, not impossible
    reversed_rows = [Operation(o.block, o.micro_batch, 20 - o.end, 20 - o.start) for o in good.operations]
    with pytest.raises(LoweringError, match="contradicts the dependencies"):
        lower(good.with_operations(reversed_rows))


@pytest.mark.parametrize(("rank", "change", "message"), [
    (0, ("SEND 0F0>1", None), "not see their messages in the same order: (SEND 0F1>1|RECV 0F0<0)"),
    (1, ("RECV 0F0<0", None), "1F0 needs the result of 0F0, which rank 1 has neither computed nor received"),
    (1, ("SEND 1I1>0", None), "wait for each other.*rank 0 waits at RECV 1I1<1, rank 1 is at its end"),
    (0, ("RECV 1I1<1", None), "0B1 needs the result of 1I1"),
    (1, ("1W1", None), "rank 1 never runs 1W1"),
    (1, ("1W1", "1W0"), "1W0 runs twice on rank 1"),
    (1, ("1W1", "1B1"), "1B1 names nothing that the problem 'pipe' has"),
    (1, ("1W1", "1W2"), r"names micro-batch 2, but there are 2 \(0 to 1\)"),
    (0, ("SEND 0F0>1", "SEND 0F1>1"), "rank 0 has not computed 0F1 by then"),
    (0, ("SEND 0F0>1", "SEND 0F0>0"), "names rank 0 as its peer, it must be another"),
    (0, ("SEND 0F0>1", "SEND 0F0>7"), "names rank 7 as its peer"),
    (0, ("0B1", "w1[1]"), r"w1\[1\] names nothing"),
])
def test_a_fault_is_refused_with_the_grid_around_it(rank: int, change: tuple[str, str | None], message: str) -> None:
    rows = [list(row) for row in GOOD]
    at = rows[rank].index(change[0])
    rows[rank][at:at + 1] = [] if change[1] is None else [change[1]]
    with pytest.raises(ProgramError, match=message) as caught:
        check_program(Program.from_text(rows), PIPE, 2)
    lines = str(caught.value).splitlines()[1:]
    assert [line.split(",")[0].strip() for line in lines] == ["rank 0", "rank 1"]
    assert sum("<-- here" in line for line in lines) == 1


def refuse(rows: tuple[tuple[str, ...], ...], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        check_program(Program.from_text(rows), PIPE, 1)


def test_work_on_the_wrong_rank_is_refused() -> None:
    refuse((("0F0", "SEND 0F0>1"), ("0F0",)), "0F0 runs on rank 1, but its block 'f0' belongs on 0")


def test_the_weight_gradient_before_the_input_gradient_is_refused() -> None:
    refuse((("0F0", "SEND 0F0>1"), ("RECV 0F0<0", "1F0", "1W0")), "1W0 needs the result of 1I0")


def test_a_result_received_for_nobody_is_refused() -> None:
    refuse((("0F0", "SEND 0F0>1", "RECV 1I0<1", "0B0", "RECV 1W0<1"),
            ("RECV 0F0<0", "1F0", "1I0", "SEND 1I0>0", "1W0", "SEND 1W0>0")),
           "rank 0 receives the result of 1W0 and never uses it")


def test_a_result_received_twice_is_refused() -> None:
    refuse((("0F0", "SEND 0F0>1", "SEND 0F0>1"), ("RECV 0F0<0", "RECV 0F0<0")), "already has the result of 0F0")


def test_two_ranks_that_both_send_first_are_refused_even_though_buffers_would_let_them_pass() -> None:
    problem = Problem("cross", (Device("0"), Device("1")), (
        Block("a", O, (0,), 1), Block("b", O, (1,), 1), Block("c", O, (0,), 1, after=(Dependency("b"),)),
        Block("d", O, (1,), 1, after=(Dependency("a"),))))
    rows = [("a[0]", "SEND a[0]>1", "RECV b[0]<1", "c[0]"), ("b[0]", "SEND b[0]>0", "RECV a[0]<0", "d[0]")]
    with pytest.raises(ProgramError, match="not see their messages in the same order"):
        check_program(Program.from_text(rows), problem, 1)


def test_of_many_ranks_the_grid_shows_those_around_the_fault() -> None:
    problem = Problem("many", tuple(Device(str(d)) for d in range(40)),
                      tuple(Block(f"a{d}", O, (d,), 1) for d in range(40)))
    rows = [(f"a{d}[0]",) if d != 38 else ("a38[0]", "a38[0]") for d in range(40)]
    with pytest.raises(ProgramError, match=r"a38\[0\] runs twice on rank 38") as caught:
        check_program(Program.from_text(rows), problem, 1)
    lines = str(caught.value).splitlines()[1:]
    assert [line.split(",")[0].strip() for line in lines] == [*(f"rank {r}" for r in range(31, 40)), "(31 more ranks)"]
    assert lines[-3].endswith("<-- here")


def test_three_ranks_in_a_circle_are_refused() -> None:
    devices = tuple(Device(str(d)) for d in range(3))
    blocks = tuple(Block(f"a{d}", O, (d,), 1) for d in range(3))
    after = tuple(Block(f"b{d}", O, (d,), 1, after=(Dependency(f"a{(d - 1) % 3}"),)) for d in range(3))
    rows = [(f"a{d}[0]", f"SEND a{d}[0]>{(d + 1) % 3}", f"RECV a{(d - 1) % 3}[0]<{(d - 1) % 3}", f"b{d}[0]")
            for d in range(3)]
    with pytest.raises(ProgramError, match="the ranks wait for each other and none can go on: rank 0 waits at SEND"):
        check_program(Program.from_text(rows), Problem("circle", devices, blocks + after), 1)
