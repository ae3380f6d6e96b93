"""The judge passes schedules with choices, jobs, classes and lanes that keep the rules, and catches every mutation."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import strategies as st

from tests.support import drawn_run, for_all
from tests.support.wide_mutations import MUTATIONS, Mutation
from tests.support.wide_schedules import Drawn, drawn_schedule, held
from weft.app.lib.judged import verdict
from weft.solver import BlockKind, Device, Infeasible, Repetend, Schedule, time_orders
from weft.solver.choices.solve import solve_run
from weft.solver.io.entries import FormatError
from weft.solver.io.schedule_files import load_schedule, save_schedule, schedule_from_json, schedule_to_json
from weft.solver.judge.choice_rules import violations_of_choice
from weft.solver.judge.claims import judge_claims
from weft.solver.judge.run_rules import run_operations
from weft.solver.judge.validate import peaks, violations
from weft.solver.problem import Block, Problem, per_class
from weft.solver.problem.rounds import Rounds, Run

SEEDS = st.integers(0, 10**6)


def faults(drawn: Drawn) -> list[str]:
    return [*violations(drawn.schedule), *violations_of_choice(drawn.schedule, drawn.whole)]


@for_all(SEEDS, tries=100)
def test_what_keeps_the_rules_passes(seed: int) -> None:
    drawn = drawn_schedule(seed)
    assert faults(drawn) == []
    assert peaks(drawn.schedule) == [max([0, *(level for _, level in held(drawn.schedule, d))])
                                     for d in range(len(drawn.schedule.problem.devices))]


#: All mutations are tried on the same ones.
known_schedule = cache(drawn_schedule)
#: How many of the first 150 seeds have something of the kind to break, at least.
ENOUGH = {"given_to_another_job": 8, "flipped": 20, "lane_overlap": 30}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_every_single_mutation_is_caught(mutation: Mutation) -> None:
    caught = 0
    for seed in range(150):
        drawn = known_schedule(seed)
        try:
            bad = mutation(drawn, random.Random(seed))
        except FormatError:  # even the file is refused
            caught += 1
            continue
        if bad is not None:
            assert faults(bad), (seed, mutation.__name__)
            caught += 1
    assert caught >= ENOUGH.get(mutation.__name__, 25)


@for_all(SEEDS, tries=50)
def test_files_are_read_as_they_were_written(seed: int) -> None:
    schedule = drawn_schedule(seed).schedule
    value = json.loads(json.dumps(schedule_to_json(schedule)))
    assert schedule_from_json(value) == schedule
    if schedule.rounds is not None:  # what the judge takes operations for is what stands in the file
        stated = [(o["block"], o["micro_batch"], o["start"], o["end"]) for o in value["operations"]]
        names = [block.name for block in schedule.rounds.origin.blocks]
        assert sorted(stated) == sorted((names[i], *further) for i, *further in run_operations(schedule))


@for_all(SEEDS, st.sampled_from(["makespan", "span"]), tries=25)
def test_what_the_search_gives_is_valid_and_its_file_true(seed: int, objective: str) -> None:
    whole = drawn_schedule(seed).whole
    try:
        found = solve_run(whole, drawn_run(whole, seed), objective=objective, effort=0.02)
    except Infeasible:  # other micro-batches than those that it has just the memory for; or none found by this effort
        return
    assert faults(Drawn(found, whole)) == []
    value = json.loads(json.dumps(schedule_to_json(found), allow_nan=False))
    assert schedule_from_json(value) == found
    stated = judge_claims(value, found)
    assert stated.false == []
    assert ("choices" in stated.open) == bool(whole.choices)
    assert stated.open["solver.options"] == "the other options are not in the file"


@pytest.fixture(scope="module")
def two_jobs() -> Schedule:
    """Three rounds of two micro-batches of one job and one of another, every round 8 after the one before."""
    device = Device("gpu")
    wide = Problem("two", (device,), (
        Block("a", BlockKind.OTHER, (0,), **per_class(duration={"s": 1, "l": 3}), job="one"),
        Block("b", BlockKind.OTHER, (0,), 4, job="two")))
    rounds = Rounds(wide, Run.of(wide, {"one": ["s", "l"] * 3, "two": 3}))
    row = [(i, m) for m in range(3) for i in range(3)]
    return Schedule(rounds.problem, 3, time_orders(rounds.problem, 3, [row]), 24.0, 8.0, 8.0, Repetend(0, 3),
                    rounds=rounds)


def test_period_and_repetend_are_of_rounds(two_jobs: Schedule, tmp_path: Path) -> None:
    save_schedule(two_jobs, tmp_path / "s.json")
    assert load_schedule(tmp_path / "s.json") == two_jobs
    found = verdict(tmp_path / "s.json")
    assert found.faults == []
    assert {"period", "repetend.first", "repetend.count", "makespan_bound", "period_bound"} <= {*found.verified}
    short = replace(two_jobs, period=7.0, period_bound=7.0)
    assert violations(short) == ["in rounds: period is 7 s, but device 'gpu' works 8 s for each round"]


def test_rounds_that_could_be_shorter_stand_in_the_file(two_jobs: Schedule) -> None:
    assert two_jobs.rounds is not None
    wide = two_jobs.rounds.origin
    rounds = Rounds(wide, Run.of(wide, {"one": ["s", "l"] * 6, "two": 6}, {"one": 4, "two": 2}))
    row = [(i, m) for m in range(3) for i in (0, 2, 1, 3, 4, 5)]
    schedule = Schedule(rounds.problem, 3, time_orders(rounds.problem, 3, [row]), 0.0, rounds=rounds)
    assert violations(schedule) == []
    value = schedule_to_json(schedule)
    assert value["rounds"] == 3 and "rounds" not in schedule_to_json(two_jobs)
    assert schedule_from_json(value) == schedule
    with pytest.raises(FormatError, match="rounds is 4, but what runs makes 6 equal rounds at most: give a divisor"):
        schedule_from_json({**value, "rounds": 4})


def test_what_the_options_leave_nothing_of_is_no_part_of_the_run(tmp_path: Path) -> None:
    gone = Block("a", BlockKind.OTHER, (0,), **per_class(duration={"s": 1, "l": 2}), when={"how": "x"}, job="one")
    left = Block("b", BlockKind.OTHER, (0,), 4, (0,), job="two")
    same = Block("c", BlockKind.OTHER, (0,), 1, (0,), when={"how": "y"}, job="one")
    of_job = Problem("w", (Device("gpu"),), (gone, left, replace(same, job="two")), choices={"how": ("x", "y")})
    of_class = replace(of_job, blocks=(gone, left, same))
    for whole in (of_job, of_class):
        rounds = Rounds(whole.under({"how": "y"}), Run.of(whole, {"one": ["s", "l", "s"], "two": 2}))
        assert not rounds.is_plain and rounds.run.rounds == 1
        row = [(block, 0) for block in rounds.problem.topological_order]
        schedule = Schedule(rounds.problem, 1, time_orders(rounds.problem, 1, [row]), 0.0, choices={"how": "y"},
                            rounds=rounds)
        assert violations(schedule) == violations_of_choice(schedule, whole) == []
        save_schedule(schedule, tmp_path / "s.json")
        assert load_schedule(tmp_path / "s.json") == schedule


def test_sentences_speak_of_jobs_and_their_micro_batches(two_jobs: Schedule) -> None:
    assert violations(two_jobs.with_operations(two_jobs.operations[1:]))[-1] == (
        "block 'a' of micro-batch 0 of job 'one' on device 'gpu' never runs")
    late = [o._replace(start=o.start - 1, end=o.end - 1) if o.start == 9 else o for o in two_jobs.operations]
    assert violations(two_jobs.with_operations(late)) == [
        "device 'gpu': block 'b' of micro-batch 1 of job 'two' starts at 8 s, but block 'a' of micro-batch 2 of job "
        "'one' runs there until 9 s"]
