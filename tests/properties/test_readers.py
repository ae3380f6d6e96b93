"""Damaged problem and schedule files: bytes changed, values replaced. Readers say ``FormatError`` and nothing else, and
what they let pass, the judge, the summary and the explanation can deal with.

``WEFT_MANY=3000`` (any number) runs so many files of each kind instead of a few.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.support import DATA, chain, keep_or_recompute, pipeline, v
from tests.support.damage import changed, with_bytes
from tests.support.examples import examples
from tests.support.wide_schedules import drawn_schedule
from weft.app.lib.judged import verdict
from weft.cli.lib.output import summary
from weft.solver import ProblemError, Schedule, baseline, solve, time_orders
from weft.solver.baselines.rivals.greedy import orders
from weft.solver.io.entries import FormatError
from weft.solver.io.problem_files import load_problem, problem_from_json, problem_to_json
from weft.solver.io.schedule_files import load_schedule, schedule_from_json, schedule_to_json
from weft.solver.ticks import TickProblem

Read = TypeVar("Read")

MANY = int(os.environ.get("WEFT_MANY", "0"))


def suite(number: int) -> settings:
    return settings(max_examples=MANY or examples(number))


def originals() -> list[dict[str, Any]]:
    """Small files with all that can stand in one."""
    full = solve(pipeline(v(2), memory=3, lag=0.5), 4, effort=0.1).with_solver(
        seconds=0.1, history=[[0.1, 60.0, 1.0], [0.2, 50.0, 2.0]],
        placement="V, B", placements=2, covered="the one placement considered (V, B)", notes=["modelled"],
        static_memory=[5, 5], gpu_memory=[8, 8], bytes_per_parameter={"weights": 2}, gradients_freed=[0, 1],
        layers_of_stage=[["a"], ["b"]], gpus_of_stage=[[0], [1]], co_shard=[None, {
            "parts": "attention in 2", "seconds_more": 0.1, "kept_less": 1, "workspace_less": 2}],
        tensor_parallel=[{"collectives": {"all_reduce": 2}, "origins": {"measured": 0.5}}, {"collectives": {}}],
        bound_over_placements=1.0, bound_over_any_placement=1.0, latency_bound=1.0, latency_period=9.0,
        memory_plan={"stages": [{"stage": 0, "operators": 2, "first": "a", "last": "b", **{
            what: {"operators": ["a"], "bytes": 1, "seconds": 0.1} for what in ("kept", "recomputed", "offloaded")}}]},
        alternatives=[{"placement": "V, B", "bound": 1.0, "makespan": 9.0, "verdict": "chosen"},
                      {"placement": "loop", "bound": 99.0, "makespan": None, "verdict": "bound"},
                      {"placement": "M", "bound": None, "makespan": None, "verdict": "none", "reason": "too few"}])
    stated = schedule_to_json(full)
    for entry in stated["solver"]["alternatives"][:1]:
        entry["makespan"] = full.makespan
    return [stated, json.loads((DATA / "false-period-high.json").read_text()),
            schedule_to_json(baseline("1f1b", pipeline(chain(2), memory=2), 3))]


def wide_originals() -> list[dict[str, Any]]:
    """Small files with choices, lanes, jobs and classes."""
    options = [{"choice": choice, "option": option, "taken": option == "keep",
                "bound": 0.0 if option == "keep" else None, "makespan": 17.0 if option == "keep" else None}
               for choice in ("memory0", "memory1") for option in ("keep", "recompute")]
    values = []
    for seed in (4, 5, 9, 16):
        schedule = drawn_schedule(seed).schedule
        values.append(schedule_to_json(schedule.with_solver(name="weft", seconds=0.1)))
    kept = keep_or_recompute(3, tight=False)
    problem = kept.under(dict.fromkeys(kept.choices, "keep")).plain()
    schedule = Schedule(problem, 2, time_orders(problem, 2, orders(problem, 2)), 0.0,
                        choices=dict.fromkeys(kept.choices, "keep"))
    values.append(schedule_to_json(schedule.with_solver(
        options=[entry for entry in options if entry["choice"] in kept.choices])))
    return values


ORIGINALS = originals()
PROBLEMS = [value["problem"] for value in ORIGINALS] + [problem_to_json(pipeline(chain(3), split=(1, 1)))]
WIDE_ORIGINALS = wide_originals()
WIDE_PROBLEMS = [*(value["problem"] for value in WIDE_ORIGINALS),
                 *(problem_to_json(drawn_schedule(seed).whole) for seed in (1, 2, 3)),
                 problem_to_json(keep_or_recompute(3, classes=True))]


def damaged_values(originals: list[Any]) -> st.SearchStrategy[bytes]:
    """A file in which some values are others."""
    return st.sampled_from(originals).flatmap(changed).map(lambda value: json.dumps(value).encode())


def damaged(originals: list[Any]) -> st.SearchStrategy[bytes]:
    """The same, or a file in which some bytes are others."""
    return damaged_values(originals) | st.builds(
        lambda draw, value: with_bytes(draw, json.dumps(value).encode()),
        st.randoms(use_true_random=False), st.sampled_from(originals))


def read_or_refused(path: Path, data: bytes, read: Callable[[Path], Read], *, longest: int) -> Read | None:
    """What ``read`` makes of ``data`` in a file; ``None`` where it refuses it in one sentence that names the file."""
    path.write_bytes(data)
    try:
        return read(path)
    except FormatError as error:
        assert str(error).startswith(str(path))
        assert len(str(error)) < longest
        str(error).encode("utf-8")
        return None


@suite(125)
@given(damaged(PROBLEMS))
def test_damaged_problems_are_read_or_refused_in_one_sentence(tmp_path: Path, data: bytes) -> None:
    problem = read_or_refused(tmp_path / "p.json", data, load_problem, longest=2000)
    if problem is None:
        return
    try:
        TickProblem.of(problem)
    except ProblemError:
        return
    assert problem_from_json(json.loads(json.dumps(problem_to_json(problem), allow_nan=False))) == problem


@suite(250)
@given(st.one_of(damaged(ORIGINALS), damaged(WIDE_ORIGINALS)))
def test_damaged_schedules_are_read_or_refused_in_one_sentence(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "s.json"
    schedule = read_or_refused(path, data, load_schedule, longest=4000)
    if schedule is None:
        return
    assert schedule_from_json(json.loads(json.dumps(schedule_to_json(schedule), allow_nan=False))) == schedule
    found = verdict(path)
    json.dumps(found.to_json(), allow_nan=False).encode("utf-8")
    for fault in found.faults:
        fault.encode("utf-8")
    if not found.faults and not schedule.choices and schedule.rounds is None:
        summary(schedule).encode("utf-8")
        weft.explain(schedule).text.encode("utf-8")


@suite(125)
@given(damaged(WIDE_PROBLEMS))
def test_damaged_problems_with_choices_are_read_or_refused_in_one_sentence(tmp_path: Path, data: bytes) -> None:
    # names of options, classes and jobs are listed
    problem = read_or_refused(tmp_path / "p.json", data, load_problem, longest=4000)
    if problem is not None:
        written = problem_to_json(problem)
        assert json.dumps(written, allow_nan=False)
        assert problem_to_json(problem_from_json(written)) == written


def test_the_files_that_are_damaged_are_good() -> None:
    """But for the one with a false period: else the properties above would test refusals alone."""
    assert [bool(verdict(schedule_from_json(value)).faults) for value in ORIGINALS] == [False, True, False]
    assert not any(verdict(schedule_from_json(value)).faults for value in WIDE_ORIGINALS)


@pytest.mark.parametrize("text", ["\0", "\x1b[31m", "\ufffe", "\ud800", "\x9b", "\U0010ffff", "a\nb"])
def test_names_that_cannot_be_shown_are_refused(text: str) -> None:
    for change in ({"name": text}, {"time_unit": text}, {"devices": [{"name": text, "memory": None}] * 2}):
        with pytest.raises(ValueError, match="which cannot be shown") as caught:
            problem_from_json({**PROBLEMS[0], **change})
        str(caught.value).encode("utf-8")
