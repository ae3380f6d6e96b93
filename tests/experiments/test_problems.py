"""The example problems with choices, jobs and classes: read, as their schema says, and scheduled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.support.paths import ROOT
from weft.solver import Schedule, time_orders, violations
from weft.solver.baselines.rivals.greedy import orders
from weft.solver.io.problem_files import load_problem, problem_to_json
from weft.solver.io.schemas import problem_schema
from weft.solver.judge.choice_rules import violations_of_choice
from weft.solver.problem import Problem
from weft.solver.problem.rounds import Rounds, Run

EXAMPLES = sorted((ROOT / "experiments" / "problems").glob("*.json"))
#: How many micro-batches run in the tests below.
RUNS: Mapping[str, Any] = {"all-reduce-chunks": 1, "two-jobs": {"one": 4, "two": 2},
                           "two-lengths": ["short", "long", "long", "short"]}


def first_come(problem: Problem, micro_batches: Any, options: Mapping[str, str]) -> Schedule:
    taken = problem.under(options)
    rounds = Rounds(taken, Run.of(taken, micro_batches))
    plain, count = rounds.problem, rounds.run.rounds
    return Schedule(plain, count, time_orders(plain, count, orders(plain, count)), 0.0, choices=options, rounds=rounds)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_what_they_are_written_as(path: Path) -> None:
    value = json.loads(path.read_text())
    assert list(Draft202012Validator(problem_schema()).iter_errors(value)) == []
    written = problem_to_json(load_problem(path))
    assert list(Draft202012Validator(problem_schema()).iter_errors(written)) == []
    path_of_jobs = {block["name"]: block.get("job") for block in value["blocks"]}
    assert {block["name"]: block.get("job") for block in written["blocks"]} == path_of_jobs


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_schedule_of_an_example_is_valid_under_every_option(path: Path) -> None:
    problem = load_problem(path)
    for options in problem.assignments:
        schedule = first_come(problem, RUNS[path.stem], options)
        assert violations(schedule) == []
        assert violations_of_choice(schedule, problem) == []


def test_the_chunks_of_an_all_reduce_are_a_choice_that_matters() -> None:
    problem = load_problem(next(path for path in EXAMPLES if path.stem == "all-reduce-chunks"))
    found = {options["chunks"]: first_come(problem, 1, options).makespan for options in problem.assignments}
    assert min(found, key=lambda chunks: found[chunks]) == "8" and found["8"] == 1297.5
