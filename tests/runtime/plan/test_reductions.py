"""Gradients are summed once, behind the last of them, in one order on all ranks."""

from __future__ import annotations

import pytest

from tests.support.builders import pipeline
from tests.support.plans import plan_of_two
from weft.runtime import Program, ProgramError, plan_of
from weft.runtime.plan.check import check_program
from weft.solver import Block, BlockKind, Dependency, Device, Problem, baseline


def test_what_stages_share_is_summed_behind_the_last_of_their_backwards_on_all_their_ranks() -> None:
    plan = plan_of_two()
    shared = plan.sharing([(1, 0)])
    assert shared.shared == ((0, 1),) and shared.digest == plan.digest
    assert shared.sharing([]) == plan and plan.sharing([]) is plan
    assert shared.program.to_text()[0][-3:] == ("0B1", "REDUCE 0", "REDUCE 0+1")
    assert shared.program.to_text()[1][-4:] == ("1B1", "SEND 1B1>0", "REDUCE 1", "REDUCE 0+1")


@pytest.mark.parametrize(("rank", "row", "message"), [
    (0, ["drop REDUCE 0"], "rank 0 never runs REDUCE 0: gradients would not be summed"),
    (1, ["drop REDUCE 0+1"], "the ranks wait for each other .* rank 0 waits at REDUCE 0.1, rank 1 is at its end"),
    (0, ["add REDUCE 0"], "REDUCE 0 runs twice on rank 0: gradients would be summed again"),
    (0, ["drop REDUCE 0+1", "3 REDUCE 0+1"], r"REDUCE 0\+1 on rank 0 comes before 0B0, whose gradient it would miss"),
    (1, ["drop REDUCE 1", "0 REDUCE 1"], "REDUCE 1 on rank 1 comes before 1B0, whose gradient it would miss"),
    (0, ["add REDUCE 1"], "REDUCE 1 on rank 0 sums gradients that it does not have; it has REDUCE 0, REDUCE 0.1"),
    (0, ["add REDUCE 7"], "REDUCE 7 on rank 0 sums gradients that it does not have"),
])
def test_a_reduction_that_is_missing_doubled_or_in_the_wrong_place_is_refused(
        rank: int, row: list[str], message: str) -> None:
    plan = plan_of_two().sharing([(0, 1)])
    rows = [list(texts) for texts in plan.program.to_text()]
    for change in row:
        where, _, text = change.partition(" ")
        if where == "drop":
            rows[rank].remove(text)
        else:
            rows[rank].insert(len(rows[rank]) if where == "add" else int(where), text)
    with pytest.raises(ProgramError, match=message) as refused:
        check_program(Program.from_text(rows), plan.problem, plan.micro_batches, plan.parameter_groups)
    assert f"rank {rank}, step" in str(refused.value) and "<-- here" in str(refused.value)


def test_a_block_on_two_ranks_needs_its_inputs_on_both_however_they_came_to_it() -> None:
    """A message brings rank 0 to the common block, which rank 1 then starts: rank 0 must have the result of a too."""
    problem = Problem("three", (Device("0"), Device("1"), Device("2")), (
        Block("a", BlockKind.OTHER, (2,), 1), Block("x", BlockKind.OTHER, (1,), 1),
        Block("both", BlockKind.OTHER, (0, 1), 1, after=(Dependency("a"), Dependency("x"))),
        Block("c", BlockKind.OTHER, (0,), 1, after=(Dependency("a"), Dependency("both"))),
    ))
    rows = [["RECV a[0]<2", "RECV x[0]<1", "both[0]", "c[0]"], ["RECV a[0]<2", "x[0]", "SEND x[0]>0", "both[0]"],
            ["a[0]", "SEND a[0]>1", "SEND a[0]>0"]]
    check_program(Program.from_text(rows), problem, 1)
    rows[0] = ["RECV x[0]<1", "both[0]", "RECV a[0]<2", "c[0]"]
    with pytest.raises(ProgramError, match=r"both\[0\] needs the result of a\[0\], which rank 0 has neither computed"):
        check_program(Program.from_text(rows), problem, 1)


def test_reductions_in_another_order_on_another_rank_are_refused() -> None:
    problem = pipeline([0, 1, 0, 1])
    plan = plan_of(baseline("greedy", problem, 2)).sharing([(0, 1), (2, 3)])
    rows = [list(texts) for texts in plan.program.to_text()]
    for row in rows:  # both at the end, where they miss nothing
        assert row.index("REDUCE 2+3") < row.index("REDUCE 0+1")
        row.remove("REDUCE 2+3")
        row.append("REDUCE 2+3")
    check_program(Program.from_text(rows), problem, 2, plan.parameter_groups)
    rows[1][-2:] = rows[1][:-3:-1]
    with pytest.raises(ProgramError, match="the ranks wait for each other"):
        check_program(Program.from_text(rows), problem, 2, plan.parameter_groups)
