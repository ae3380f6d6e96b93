"""Files with choices, jobs and classes: read as they were written, and refused with the entry at fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.examples import for_all
from tests.support.wide_problems import keep_or_recompute, wide_problems
from weft.solver.io.entries import FormatError
from weft.solver.io.problem_files import load_problem, problem_from_json, problem_to_json
from weft.solver.problem import Problem


@for_all(wide_problems(classes=True), tries=30)
def test_what_is_written_is_read(problem: Problem) -> None:
    assert problem_from_json(json.loads(json.dumps(problem_to_json(problem)))) == problem


def test_files_without_anything_open_are_plain(tmp_path: Path) -> None:
    plain = keep_or_recompute(1, choices=False)
    path = tmp_path / "plain.json"
    path.write_text(json.dumps(problem_to_json(plain)))
    assert load_problem(path).is_plain


@pytest.mark.parametrize(("field", "value", "message"), [
    ("choices", {"memory0": "keep"}, r"choices: memory0 is \"keep\", it must be a list of options"),
    ("choices", {"memory0": ["keep"]}, "choices: 'memory0' has 1 option"),
    ("when", {"memory0": 3}, r"blocks\[0\]: when: memory0 is 3"),
    ("when", {"memory0": "drop"}, "has no option 'drop'"),
    ("job", 3, r"blocks\[0\]: job is 3"),
    ("duration", {}, r"blocks\[0\]: duration is empty"),
    ("duration", {"s": -1}, "duration is -1"),
    ("wen", {}, "unknown field 'wen'; did you mean 'when'"),
])
def test_what_is_wrong_is_said_with_its_place(field: str, value: object, message: str) -> None:
    written = problem_to_json(keep_or_recompute(0))
    (written if field == "choices" else written["blocks"][0])[field] = value
    with pytest.raises(FormatError, match=message):
        problem_from_json(written, "file.json")


@pytest.mark.parametrize(("damage", "message"), [
    (lambda v: v["devices"].extend([{"name": "net", "lane_of": "gpu0"}, {"name": "wire", "lane_of": "net"}]),
     "device 'wire': lane_of is 'net', which is a lane itself: name the device both are engines of, 'gpu0'"),
    (lambda v: v["devices"].append({"name": "net", "lane_of": "gpu0", "memory": 3}),
     r"devices\[.\]: device 'net': memory is 3, but a lane has none of its own: leave it out"),
    (lambda v: v["devices"].append(v["devices"][0]), "devices: the name 'gpu0' is used twice"),
    (lambda v: v["blocks"][0].update(devices=[9]), "block 'F0': devices names device 9, but there are"),
    (lambda v: v.update(blocks=[]), "blocks is empty, a problem has at least one block"),
    (lambda v: v.update(devices=[]), "names device|devices is empty, a problem has at least one device"),
    (lambda v: v["choices"].update({"memory0": ["keep", "recompute", "drop"]}),
     "choices: 'memory0': no block and no wait names the option 'drop' in its `when`: take it out, or say what"),
    (lambda v: v["blocks"][0]["when"].update(memory0="\0"), "the name holds the character '.x00', which cannot"),
    (lambda v: v["blocks"][0].update(job="x" * 2000), "block 'F0': job 'xxx.*: the name has 2000 characters"),
    (lambda v: v["blocks"][0].update(duration={"s": 1}, memory={"l": 1}),
     "block 'F0': duration says nothing of class 'l', of which other entries do: give a number for each class"),
    (lambda v: v["blocks"].append({**v["blocks"][0], "when": {}}),
     "the name 'F0' is used twice under options that do not exclude each other"),
])
def test_what_is_wrong_is_said_even_where_no_option_can_be_at_fault(damage: Callable[[dict[str, Any]], object],
                                                                    message: str) -> None:
    written = problem_to_json(keep_or_recompute(0))
    damage(written)
    with pytest.raises(FormatError, match=message) as caught:
        problem_from_json(written, "file.json")
    assert "\n" not in str(caught.value) and str(caught.value).startswith("file.json: ")
