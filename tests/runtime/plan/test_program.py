"""The instruction text, programs, and the plan file."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.builders import pipeline
from weft.runtime.plan.check import check_program
from weft.runtime.plan.plan import Plan, load_plan, plan_from_json, plan_of, plan_to_json, save_plan
from weft.runtime.plan.program import BlockWork, Program, ProgramError, Recv, Reduce, Send, StageWork, parse_instruction
from weft.runtime.plan.timeline import Measured, Timeline, compare, load_timeline, save_timeline, timeline_from_json
from weft.solver.baselines import baseline
from weft.solver.io.entries import FormatError
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem
from weft.solver.schedule import Schedule
from weft.solver.timing import time_orders


def two_stages() -> Problem:
    """F0 on device 0, F1 and B1 on device 1, B0 on device 0; each transfer takes half a second."""
    return Problem("two", (Device("left"), Device("right")), (
        Block("f0", BlockKind.FORWARD, (0,), 1),
        Block("f1", BlockKind.FORWARD, (1,), 1, after=(Dependency("f0", 0.5),)),
        Block("b1", BlockKind.BACKWARD, (1,), 2, after=(Dependency("f1"),)),
        Block("b0", BlockKind.BACKWARD, (0,), 2, after=(Dependency("b1", 0.5),)),
    ))


def plan_of_two() -> Plan:
    problem = two_stages()
    orders = [[(0, 0), (0, 1), (3, 0), (3, 1)], [(1, 0), (2, 0), (1, 1), (2, 1)]]
    return plan_of(Schedule(problem, 2, time_orders(problem, 2, orders), 0.0, solver={"name": "by hand"}))


@pytest.mark.parametrize(("text", "instruction"), [
    ("2F0", StageWork(2, "F", 0)),
    ("0B13", StageWork(0, "B", 13)),
    ("10I7", StageWork(10, "I", 7)),
    ("3W2", StageWork(3, "W", 2)),
    ("embed.f-1[4]", BlockWork("embed.f-1", 4)),
    ('"2F"[0]', BlockWork("2F", 0)),
    ('"a \\"b\\" [1]>2"[3]', BlockWork('a "b" [1]>2', 3)),
    ("SEND 2F0>1", Send(StageWork(2, "F", 0), 1)),
    ("RECV 3I5<12", Recv(StageWork(3, "I", 5), 12)),
    ('SEND "a>1"[0]>2', Send(BlockWork("a>1", 0), 2)),
    ("REDUCE 2", Reduce((2,))),
    ("REDUCE 0+3+11", Reduce((0, 3, 11))),
])
def test_an_instruction_prints_as_its_text_and_parses_back(text: str, instruction: object) -> None:
    assert str(instruction) == text
    assert parse_instruction(text) == instruction


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


def test_a_plan_file_gives_the_same_plan_back(tmp_path: Path) -> None:
    plan = plan_of_two()
    save_plan(plan, tmp_path / "plan.json")
    again = load_plan(tmp_path / "plan.json")
    assert again == plan
    assert again.digest == plan.digest
    assert again.stage_ranks == (0, 1)
    assert again.program.to_text()[0] == (
        "0F0", "SEND 0F0>1", "0F1", "SEND 0F1>1", "RECV 1B0<1", "0B0", "RECV 1B1<1", "0B1", "REDUCE 0")


def _set(value: dict[str, Any], path: str, new: object) -> None:
    *parents, last = path.split(".")
    for key in parents:
        value = value[int(key) if key.isdigit() else key]  # type: ignore[index]
    value[int(last) if last.isdigit() else last] = new  # type: ignore[index]


@pytest.mark.parametrize(("path", "new", "message"), [
    ("format", "weft.plan/3", "the file comes from a newer weft"),
    ("colour", "blue", "unknown field 'colour'"),
    ("micro_batches", 0, "micro_batches is 0, it must be a whole number of at least 1"),
    ("micro_batches", 3, "rank 0 never runs 0B2"),
    ("makespan", 1.0, "makespan is 1.0, but the last instruction ends at"),
    ("stages", [1, 0], r"stages is \[1, 0\], but the problem's stages are on ranks \[0, 1\]"),
    ("ranks.0.device", "middle", "device is 'middle', but rank 0 runs the problem's device 'left'"),
    ("ranks.1.instructions.0.do", "RECV 0F0>0", r"ranks\[1\]: instructions\[0\]: do: 'RECV 0F0>0' is no instruction"),
    ("ranks.1.instructions.0.start", 0, "unknown field 'start'"),
    ("ranks.0.instructions.0.end", 0, "it must end after it starts"),
    ("ranks.0.instructions.0.do", "0F1", "0F1 is from 1.0 to 2.0, it must .* have the same times on all its ranks"),
    ("shared", [[1, 0]], r"shared is \[\[1, 0\]\], it must be a sorted list of lists, each of at least two"),
    ("shared", [[0, 2]], "of the stages 0 to 1, ascending"),
    ("shared", [[0, 1]], r"rank 0 never runs REDUCE 0\+1: gradients would not be summed"),
    ("format", "weft.plan/1", "REDUCE 0 on rank 0 sums gradients that it does not have; it has none to sum"),
    ("solver", None, "solver is null, it must be an object"),
])
def test_a_plan_that_is_not_what_it_should_be_is_refused(path: str, new: object, message: str) -> None:
    value = json.loads(json.dumps(plan_to_json(plan_of_two())))
    _set(value, path, new)
    with pytest.raises(FormatError, match=message):
        plan_from_json(value, "plan.json")


def test_a_plan_written_before_there_were_reductions_is_read_with_them() -> None:
    plan = plan_of_two()
    value = json.loads(json.dumps(plan_to_json(plan)))
    for row in value["ranks"]:
        assert row["instructions"].pop()["do"].startswith("REDUCE")
    assert plan_from_json({**value, "format": "weft.plan/1"}) == plan
    with pytest.raises(FormatError, match="rank 0 never runs REDUCE 0: gradients would not be summed"):
        plan_from_json(value)
    with pytest.raises(FormatError, match="unknown field 'shared'"):
        plan_from_json({**value, "format": "weft.plan/1", "shared": []})


def test_what_stages_share_is_summed_behind_the_last_of_their_backwards_on_all_their_ranks() -> None:
    plan = plan_of_two()
    shared = plan.sharing([(1, 0)])
    assert shared.shared == ((0, 1),) and shared.digest == plan.digest
    assert shared.sharing([]) == plan and plan.sharing([]) is plan
    assert shared.program.to_text()[0][-3:] == ("0B1", "REDUCE 0", "REDUCE 0+1")
    assert shared.program.to_text()[1][-4:] == ("1B1", "SEND 1B1>0", "REDUCE 1", "REDUCE 0+1")


def test_a_stage_that_is_done_sums_while_another_of_its_rank_goes_on() -> None:
    problem = pipeline([0, 1, 1, 0])
    plan = plan_of(baseline("greedy", problem, 2))
    row = plan.program.to_text()[0]
    assert row.index("3B1") < row.index("REDUCE 3") < row.index("0B1") < row.index("REDUCE 0")


def test_inference_sums_nothing() -> None:
    problem = replace(two_stages(), blocks=two_stages().blocks[:2])
    plan = plan_of(Schedule(problem, 1, time_orders(problem, 1, [[(0, 0)], [(1, 0)]]), 0.0))
    assert not any(text.startswith("REDUCE") for row in plan.program.to_text() for text in row)


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


def test_planning_needs_no_torch() -> None:
    code = "import sys, weft.runtime.plan.plan, weft.runtime.plan.timeline; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_timeline_file_gives_the_same_timeline_back_and_is_held_against_its_plan(tmp_path: Path) -> None:
    plan = plan_of_two()
    timeline = Timeline.of(plan, 0.01, [Measured("f1", 0, 1, 7.5, 7.6), Measured("f0", 0, 0, 7.25, 7.375)])
    assert timeline.operations[0] == Measured("f0", 0, 0, 0.0, 0.125)
    save_timeline(timeline, tmp_path / "timeline.json")
    assert load_timeline(tmp_path / "timeline.json") == timeline
    comparison = compare(timeline, plan)
    assert comparison.predicted == pytest.approx(plan.makespan * 0.01)
    assert comparison.ratio == pytest.approx(0.35 / (plan.makespan * 0.01))
    with pytest.raises(ValueError, match="was not measured on this plan"):
        compare(timeline, replace(plan, micro_batches=3))


def test_a_timeline_that_ends_before_it_starts_is_refused() -> None:
    value = {"format": "weft.timeline/1", "plan": "", "name": "", "seconds_per_unit": 1,
             "operations": [{"block": "f0", "micro_batch": 0, "rank": 0, "start": 2, "end": 1}]}
    with pytest.raises(FormatError, match=r"operations\[0\]: start is 2.0 and end 1.0"):
        timeline_from_json(value)


@pytest.mark.parametrize("unit", [0, 1e-200, 1e90])
def test_a_unit_of_time_that_times_cannot_be_counted_in_is_refused(unit: float) -> None:
    value = {"format": "weft.timeline/1", "plan": "", "name": "", "seconds_per_unit": unit, "operations": []}
    with pytest.raises(FormatError, match=r"seconds_per_unit is .*, it must be from 1e-60 to 1e\+60"):
        timeline_from_json(value)
