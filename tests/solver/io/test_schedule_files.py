"""Schedule files with choices, jobs and classes: what is wrong with one is said in a sentence with its place."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import ran, shows
from weft.solver import BlockKind, Device, Schedule, time_orders
from weft.solver.io.entries import FormatError
from weft.solver.io.schedule_files import schedule_from_json, schedule_to_json
from weft.solver.problem import Block, Problem, per_class
from weft.solver.problem.rounds import Rounds, Run


def written() -> dict[str, Any]:
    """Two micro-batches of job ``one``, short and long, and two of job ``two``; an option was taken."""
    wide = Problem("w", (Device("gpu"),), (
        Block("a", BlockKind.OTHER, (0,), **per_class(duration={"s": 1, "l": 3}), job="one"),
        Block("b", BlockKind.OTHER, (0,), 4, job="two")))
    rounds = Rounds(wide, Run.of(wide, {"one": ["s", "l"], "two": 2}))
    made = time_orders(rounds.problem, 1, [[(i, 0) for i in rounds.problem.topological_order]])
    solver = {"name": "weft", "options": [
        {"choice": "how", "option": "x", "taken": True, "bound": 12.0, "makespan": 12.0},
        {"choice": "how", "option": "y", "taken": False, "bound": 13.0, "makespan": None}]}
    return schedule_to_json(Schedule(rounds.problem, 1, made, 12.0, solver=solver, choices={"how": "x"}, rounds=rounds))


def open_choice(value: dict[str, Any]) -> None:
    value["problem"]["choices"] = {"how": ["x", "y"]}
    value["problem"]["blocks"][0]["when"] = {"how": "x"}
    value["problem"]["blocks"][1]["when"] = {"how": "y"}


@pytest.mark.parametrize(("damage", "message"), [
    (lambda v: v["micro_batches"].update(three=1),
     "f.json: micro_batches: the job 'three' has no block, there are the jobs 'one', 'two'"),
    (lambda v: v["micro_batches"].pop("two"), "f.json: micro_batches says nothing of the job 'two'"),
    (lambda v: v["micro_batches"].update(one=["s", "xl"]),
     "f.json: micro_batches of job 'one': there is no class 'xl', there are 's', 'l'"),
    (lambda v: v["micro_batches"].update(one=2),
     "f.json: micro_batches of job 'one' is 2, but they are of the classes 's', 'l': list the class of each"),
    (lambda v: v["micro_batches"].update(two=0),
     "f.json: micro_batches: two is 0, it must be a whole number of at least 1, or a list with the class of each"),
    (lambda v: v["micro_batches"].update(two=10**9),
     "f.json: micro_batches is 1000000000, but there are 4 operations"),
    (lambda v: v["micro_batches"].update(one=[]), "f.json: micro_batches: one is [], it must be a whole number"),
    (lambda v: v.update(micro_batches=["s", "l"]),
     "f.json: micro_batches lists classes, and there are the jobs 'one', 'two': say whose micro-batches they are"),
    (lambda v: v.update(micro_batches=None), "f.json: micro_batches is null, it must be a whole number"),
    (lambda v: v.update(rounds=2), "f.json: rounds is 2, but what runs makes 1 equal rounds at most: give a divisor"),
    (lambda v: v.update(rounds=0), "f.json: rounds is 0, it must be a whole number of at least 1"),
    (lambda v: v.update(choices=["x"]), "f.json: choices: is [\"x\"], it must be an object"),
    (lambda v: v["choices"].update(how=3), "f.json: choices: how is 3, it must be text"),
    (lambda v: v["choices"].update(how="x" * 1001), "f.json: choices: the option of 'how', 'xxx"),
    (open_choice, "f.json: problem: the choice 'how' is open ('x', 'y'), and a schedule is of what one option of each "
                  "makes: leave out choices and when, and what does not exist under the options taken"),
    (lambda v: v["operations"][0].update(block="a*0"), "f.json: operations[0]: block: there is no block named 'a*0'"),
])
def test_what_is_wrong_is_said_in_a_sentence(damage: Callable[[dict[str, Any]], object], message: str) -> None:
    value = written()
    damage(value)
    with pytest.raises(FormatError) as caught:
        schedule_from_json(value, "f.json")
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("damage", "fault"), [
    (lambda v: v["micro_batches"].update(one=["s"]),
     "block 'a' runs for micro-batch 1 of job 'one', there are 0 to 0"),
    (lambda v: v["micro_batches"].update(one=["s", "l", "l"]),
     "block 'a' of micro-batch 2 of job 'one' on device 'gpu' never runs"),
    (lambda v: v["micro_batches"].update(one=["s", "s"]), "but the block lasts 1 s"),
    (lambda v: v["operations"][0].update(micro_batch=7), "runs for micro-batch 7 of job"),
    (lambda v: v.update(makespan_bound=12.5), "makespan_bound is 12.5 s, above the makespan of 12 s"),
    (lambda v: v["solver"]["options"][0].update(bound=12.5),
     "solver: options is a list with a bound of 12.5 s for how = x, and a schedule with it takes 12 s"),
    (lambda v: v["solver"]["options"][1].update(makespan=12.5),
     "solver: options is a list with a bound of 13 s for how = y, and a schedule with it takes 12.5 s"),
    (lambda v: v["choices"].update(how="y"),
     "solver: options is a list that has 'x' as the option taken of 'how', and choices has 'y'"),
    (lambda v: v["choices"].update(why="y"),
     "solver: options is a list that has none as the option taken of 'why', and choices has 'y'"),
    (lambda v: v["solver"]["options"][1].update(taken=True),
     "solver: options is a list that has 'x', 'y' as the option taken of 'how', and choices has 'x'"),
])
def test_check_says_what_is_false(damage: Callable[[dict[str, Any]], object], fault: str, tmp_path: Path) -> None:
    value = written()
    damage(value)
    (tmp_path / "s.json").write_text(json.dumps(value))
    printed = ran("check", tmp_path / "s.json")
    assert printed.status == 1
    assert fault in printed.out and "Traceback" not in printed.out + printed.err


def test_what_cannot_be_checked_is_listed(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(written()))
    found = json.loads(shows("check", tmp_path / "s.json", "--json"))
    reasons = {entry["claim"]: entry["reason"] for entry in found["not_checked"]}
    assert reasons["choices"] == reasons["solver.options"] == "the other options are not in the file"
    assert {"operations", "makespan", "peak_memory", "status"} <= {*found["verified"]}


def test_rounds_of_micro_batches_that_are_all_alike() -> None:
    value = written()
    plain = copy.deepcopy(value)
    plain["problem"]["blocks"] = [block for block in value["problem"]["blocks"] if block["name"] == "b"]
    del plain["problem"]["blocks"][0]["job"]
    plain.update(micro_batches=2, rounds=1, choices={}, solver={"name": "weft"}, operations=[
        entry for entry in value["operations"] if entry["block"] == "b"])
    found = schedule_from_json(plain)
    assert found.rounds is not None and found.micro_batches == 1
    assert [block.name for block in found.problem.blocks] == ["b*0", "b*1"]
    assert schedule_to_json(found)["rounds"] == 1
    del plain["rounds"]
    assert schedule_from_json(plain).rounds is None
