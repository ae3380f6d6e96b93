"""The published JSON Schemas and the readers accept the same files, but for what no schema can say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.properties.test_readers import ORIGINALS, PROBLEMS, WIDE_ORIGINALS, WIDE_PROBLEMS, damaged_values, suite
from tests.support.commands import shows
from tests.support.strategies import problems, schedules
from tests.support.wide_schedules import drawn_schedule
from weft.solver import Problem, Schedule
from weft.solver.io.entries import FormatError
from weft.solver.io.problem_files import problem_from_json, problem_to_json
from weft.solver.io.schedule_files import schedule_from_json, schedule_to_json
from weft.solver.io.schemas import problem_schema, schedule_schema

PROBLEM, SCHEDULE = (Draft202012Validator(schema) for schema in (problem_schema(), schedule_schema()))

#: What a reader refuses that no schema can.
BEYOND = re.compile("|".join((
    "is used twice", "there is no (device|block|link) named", "there is no block of that name", "in a cycle",
    "names device", r"has \d+ entries for \d+ devices", "one number for each of the", "must be 0 or at least 1e-60",
    "it must be a whole number", "solver", "goes from device", "indices into devices",
    "cannot be shown", "lane_of is",
    # choices, jobs and classes
    "no block and no wait names the option", "has no option", "there is no choice", "never holds where", "is open",
    "no block exists", "belongs to no job", "is used in the jobs", "counted per job", "the job .* has no block",
    "says nothing of", "there is no class", "list the class of each", "say whose micro-batches", "equal rounds",
    "all are alike", "waits twice", r"but there are \d+ operations")))


def plain(value: Any) -> bool:
    """Whether ``value`` is a file's content as JSON has it: no NaN, infinity or half of a surrogate pair."""
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except ValueError:
        return False
    return True


def agree(validator: Draft202012Validator, read: Callable[[Any], object], data: bytes) -> None:
    value = json.loads(data)
    if not plain(value):
        return
    accepted = validator.is_valid(value)
    try:
        read(value)
    except FormatError as error:
        assert not accepted or BEYOND.search(str(error)), error
    else:
        assert accepted, next(validator.iter_errors(value))


@suite(200)
@given(st.one_of(damaged_values(PROBLEMS), damaged_values(WIDE_PROBLEMS)))
@example(json.dumps({**PROBLEMS[0], "links": None}).encode())
@example(json.dumps({**PROBLEMS[0], "devices": []}).encode())
def test_the_problems_that_the_schema_refuses_are_those_that_the_reader_refuses(data: bytes) -> None:
    agree(PROBLEM, problem_from_json, data)


@suite(200)
@given(st.one_of(damaged_values(ORIGINALS), damaged_values(WIDE_ORIGINALS)))
@example(json.dumps({**ORIGINALS[0], "period": 0}).encode())
def test_the_schedules_that_the_schema_refuses_are_those_that_the_reader_refuses(data: bytes) -> None:
    agree(SCHEDULE, schedule_from_json, data)


@suite(50)
@given(st.integers(0, 10**6))
def test_what_weft_writes_of_choices_its_schemas_accept(seed: int) -> None:
    drawn = drawn_schedule(seed)
    PROBLEM.validate(problem_to_json(drawn.whole))
    SCHEDULE.validate(schedule_to_json(drawn.schedule))


@suite(50)
@given(st.one_of(problems(capacities=True), schedules()))
def test_what_weft_writes_its_schemas_accept(made: Problem | Schedule) -> None:
    if isinstance(made, Problem):
        PROBLEM.validate(problem_to_json(made))
    else:
        SCHEDULE.validate(schedule_to_json(made))


@pytest.mark.parametrize("of", ["problem", "schedule"])
def test_the_command_prints_them(of: str) -> None:
    printed = json.loads(shows("schema", of))
    assert printed["title"] == f"weft.{of}/1"
    Draft202012Validator.check_schema(printed)
