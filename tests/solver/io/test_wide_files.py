"""Files with choices, jobs and classes: read as they were written, and refused with the entry at fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings

from tests.support.wide_problems import keep_or_recompute, wide_problems
from weft.solver.io.entries import FormatError
from weft.solver.io.wide_files import any_problem_from_json, any_problem_to_json, load_any_problem
from weft.solver.problem import Problem
from weft.solver.wide.problem import WideProblem


@given(wide_problems(classes=True))
@settings(max_examples=30, deadline=None)
def test_what_is_written_is_read(problem: WideProblem) -> None:
    assert any_problem_from_json(json.loads(json.dumps(any_problem_to_json(problem)))) == problem


def test_files_without_anything_open_are_plain(tmp_path: Path) -> None:
    plain = keep_or_recompute(1, choices=False)
    path = tmp_path / "plain.json"
    path.write_text(json.dumps(any_problem_to_json(plain)))
    assert isinstance(load_any_problem(path), Problem)


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
    written = any_problem_to_json(keep_or_recompute(0))
    (written if field == "choices" else written["blocks"][0])[field] = value
    with pytest.raises(FormatError, match=message):
        any_problem_from_json(written, "file.json")
