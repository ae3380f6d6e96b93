"""The formats read back what they wrote, and refuse what is of the wrong type."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.support.examples import for_all
from tests.support.strategies import problems, schedules
from weft.solver import Problem, Schedule
from weft.solver.io.entries import FormatError
from weft.solver.io.problem_files import problem_from_json, problem_to_json
from weft.solver.io.schedule_files import schedule_from_json, schedule_to_json


@for_all(problems(capacities=True), tries=100)
def test_problems_round_trip(problem: Problem) -> None:
    text = json.dumps(problem_to_json(problem), allow_nan=False)
    assert problem_from_json(json.loads(text)) == problem


@for_all(schedules(), tries=50)
def test_schedules_round_trip(schedule: Schedule) -> None:
    text = json.dumps(schedule_to_json(schedule), allow_nan=False)
    back = schedule_from_json(json.loads(text))
    assert back == schedule
    assert (back.makespan, back.peak_memory, back.status) == (schedule.makespan, schedule.peak_memory, schedule.status)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every field and list entry inside ``value``."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in inside for place in ((*path, key), *places(item, (*path, key)))]


@for_all(problems(), st.data(), tries=100)
def test_a_field_of_the_wrong_type_is_refused(problem: Problem, data: st.DataObject) -> None:
    """Every field of a problem that is neither free text nor optional, given ``true``, or an object without a number
    for its class."""
    original = problem_to_json(problem)
    free = ("name", "time_unit", "memory_unit")
    wrong = data.draw(st.sampled_from([True, {"x": True}, math.nan, [[]]]))
    path = data.draw(st.sampled_from([path for path in places(original) if path[-1] not in free]))
    damaged = copy.deepcopy(original)
    holder: Any = damaged
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = wrong
    with pytest.raises(FormatError):
        problem_from_json(damaged)
