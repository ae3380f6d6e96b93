"""Plans and their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.lane_problems import laned_schedule
from tests.support.plans import plan_of_two
from tests.support.wide_problems import schedule_of_jobs, schedule_of_rounds
from weft.runtime.plan.plan import load_plan, plan_from_json, plan_of, plan_to_json, save_plan
from weft.runtime.plan.program import BlockWork
from weft.solver.io.entries import FormatError
from weft.solver.problem import Block, BlockKind, Device, Problem, per_class
from weft.solver.problem.rounds import Run


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


def test_a_plan_of_jobs_names_blocks_and_micro_batches_as_they_do() -> None:
    schedule = schedule_of_jobs()
    plan = plan_of(schedule)
    assert plan.program.to_text()[0] == (
        "A0[0]", "SEND A0[0]>1", "RECV B1[0]<1", "A0[1]", "SEND A0[1]>1", "A0[2]", "SEND A0[2]>1", "RECV B1[1]<1",
        "A0[3]", "SEND A0[3]>1", "B0[0]", "B0[1]")
    assert plan.vocabulary.micro_batch(BlockWork("A0", 3)) == "micro-batch 3 of job 'chat'"
    value = plan_to_json(plan)
    assert value["micro_batches"] == {"chat": ["short", "long"] * 2, "search": 2}
    again = plan_from_json(value)
    assert (again.program, again.times, again.digest) == (plan.program, plan.times, plan.digest)
    value["ranks"][0]["instructions"][0]["do"] = "A0[4]"
    with pytest.raises(FormatError, match=r"A0\[4\] names micro-batch 4, but there are 4 \(0 to 3\)"):
        plan_from_json(value)


def test_what_can_be_emulated_only_says_why() -> None:
    assert plan_of_two().why_not_trained is None
    assert plan_of(laned_schedule()).why_not_trained == (
        "the problem 'laned pipeline' can be emulated, but not run: device 'gpu 0 network' is a lane of 'gpu 0', and "
        "the executor has no lanes for the passes of stages")
    assert "it has the jobs 'chat' and 'search', and one model is trained at a time" in str(
        plan_of(schedule_of_jobs()).why_not_trained)
    block = Block("F", BlockKind.FORWARD, (0,), **per_class(duration={"short": 1, "long": 2}))
    wide = Problem("lengths", (Device("gpu"),), (block,))
    assert "its micro-batches differ from each other" in str(
        plan_of(schedule_of_rounds(wide, Run.of(wide, ["short", "long"]))).why_not_trained)
