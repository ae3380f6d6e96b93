"""The proof of a program: every fault is refused, with the grid around it."""

from __future__ import annotations

import pytest

from tests.support.plans import GOOD, PIPE
from weft.runtime.plan.check import check_program
from weft.runtime.plan.program import Program, ProgramError
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem

F, B, I, W, O = (BlockKind.FORWARD, BlockKind.BACKWARD, BlockKind.INPUT_GRAD, BlockKind.WEIGHT_GRAD, BlockKind.OTHER)  # noqa: E741


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
