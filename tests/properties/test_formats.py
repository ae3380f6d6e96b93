"""The formats read back what they wrote, and meet damage with a FormatError and nothing else."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.strategies import problems, schedules
from weft.solver.io.entries import FormatError
from weft.solver.io.problem_files import load_problem, problem_from_json, problem_to_json
from weft.solver.io.schedule_files import load_schedule, schedule_from_json, schedule_to_json
from weft.solver.problem import Problem
from weft.solver.schedule import Schedule

#: What may stand in a damaged field: every type, and the numbers that break careless arithmetic.
JUNK: st.SearchStrategy[Any] = st.sampled_from([
    None, True, "", "gpu0", "b0", "forward", [], {}, [None], [[]], [0], [0, 0], {"block": "b0"},
    0, -1, 1, 2, 99, 10**400, 0.5, -0.5, 1e308, -1e308, math.nan, math.inf, "weft.problem/2"])


@settings(max_examples=examples(100))
@given(problems(capacities=True))
def test_problems_round_trip(problem: Problem) -> None:
    text = json.dumps(problem_to_json(problem), allow_nan=False)
    assert problem_from_json(json.loads(text)) == problem


@settings(max_examples=examples(50))
@given(schedules())
def test_schedules_round_trip(schedule: Schedule) -> None:
    text = json.dumps(schedule_to_json(schedule), allow_nan=False)
    back = schedule_from_json(json.loads(text))
    assert back == schedule
    assert (back.makespan, back.peak_memory, back.status) == (schedule.makespan, schedule.peak_memory, schedule.status)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every field and list entry inside ``value``."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in inside for place in ((*path, key), *places(item, (*path, key)))]


def damage(draw: st.DataObject, original: dict[str, Any]) -> dict[str, Any]:
    """A copy with one field replaced, removed, renamed or (in a list) repeated."""
    damaged = copy.deepcopy(original)
    path = draw.draw(st.sampled_from(places(damaged)))
    holder: Any = damaged
    for key in path[:-1]:
        holder = holder[key]
    way = draw.draw(st.sampled_from(["replace", "replace", "remove", "rename"]))
    if way == "replace":
        holder[path[-1]] = copy.deepcopy(draw.draw(JUNK))
    elif way == "remove":
        del holder[path[-1]]
    elif isinstance(holder, list):
        holder.insert(0, copy.deepcopy(holder[path[-1]]))
    else:
        holder[f"{path[-1]}_"] = holder.pop(path[-1])
    return damaged


def assert_refused_or_understood(read: Any, write: Any, damaged: dict[str, Any], file: Path, load: Any) -> None:
    """Read as an object and as a file. What is accepted is a value that the format can say: it is written and read
    back equal."""
    try:
        understood = read(damaged, "file.json")
    except FormatError as error:
        assert str(error).startswith("file.json")
        assert "\n" not in str(error)
        file.write_text(json.dumps(damaged))
        with pytest.raises(FormatError):
            load(file)
    else:
        assert read(json.loads(json.dumps(write(understood), allow_nan=False))) == understood


@settings(max_examples=examples(200))
@given(problems(capacities=True), st.data())
def test_a_damaged_problem_is_refused_or_understood(tmp_path: Path, problem: Problem, data: st.DataObject) -> None:
    damaged = damage(data, problem_to_json(problem))
    assert_refused_or_understood(problem_from_json, problem_to_json, damaged, tmp_path / "file.json", load_problem)


@settings(max_examples=examples(200))
@given(schedules(max_micro_batches=2), st.data())
def test_a_damaged_schedule_is_refused_or_understood(tmp_path: Path, schedule: Schedule, data: st.DataObject) -> None:
    damaged = damage(data, schedule_to_json(schedule))
    assert_refused_or_understood(schedule_from_json, schedule_to_json, damaged, tmp_path / "file.json", load_schedule)


@settings(max_examples=examples(100))
@given(problems(), st.data())
def test_a_field_of_the_wrong_type_is_refused(problem: Problem, data: st.DataObject) -> None:
    """Every field of a problem that is neither free text nor optional, given an object or ``true``."""
    original = problem_to_json(problem)
    free = ("name", "time_unit", "memory_unit")
    wrong = data.draw(st.sampled_from([True, {"x": 1}, math.nan, [[]]]))
    path = data.draw(st.sampled_from([path for path in places(original) if path[-1] not in free]))
    damaged = copy.deepcopy(original)
    holder: Any = damaged
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = wrong
    with pytest.raises(FormatError):
        problem_from_json(damaged)
