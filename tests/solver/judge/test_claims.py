"""What files state of their schedules, and what ``weft check`` says of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import DATA, chain, pipeline, shows
from weft.app.lib.judged import verdict
from weft.solver import Repetend, Schedule, solve, unroll
from weft.solver.io.entries import FormatError
from weft.solver.io.schedule_files import load_schedule, save_schedule, schedule_from_json, schedule_to_json
from weft.solver.judge.claims import judge_claims
from weft.solver.judge.validate import statements, violations


@pytest.fixture(scope="module")
def steady() -> Schedule:
    schedule = solve(pipeline(chain(3), memory=3), 9, effort=0.5)
    assert schedule.period == 3
    assert schedule.repetend is not None
    assert schedule.repetend.count > 2
    return schedule


@pytest.mark.parametrize(("name", "fault"), [
    ("high", "period is 5.05000005 ms, but the repetend takes 3.3666667 ms per micro-batch when it is repeated"),
    ("low", "period is 2 ms, but the repetend takes 4 ms per micro-batch when it is repeated"),
])
def test_a_false_period_is_refused(name: str, fault: str) -> None:
    path = DATA / f"false-period-{name}.json"
    assert violations(load_schedule(path)) == [fault]
    assert fault in shows("check", path, status=1)
    found = json.loads(shows("check", path, "--json", status=1))
    assert not found["valid"]
    assert found["faults"][0] == fault
    assert found["verified"] == found["not_checked"] == []


def test_what_is_verified_and_what_is_not_is_listed(steady: Schedule, tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    save_schedule(steady, tmp_path / "s.json")
    lines = shows("check", tmp_path / "s.json").splitlines()
    assert ("verified  operations, makespan_bound, repetend.first, repetend.count, repetend.micro_batches, "
            "period_bound, period,") in lines
    assert any(line.startswith("unchecked solver.name, solver.seconds") for line in lines)
    found = json.loads(shows("check", tmp_path / "s.json", "--json"))
    assert found["valid"]
    assert found["faults"] == []
    assert {"period", "peak_memory"} < set(found["verified"])
    assert {"claim": "solver.seconds", "reason": "it says how the schedule came about"} in found["not_checked"]


def test_bounds_are_verified_where_a_simple_argument_gives_them(steady: Schedule) -> None:
    assert {"makespan_bound", "period_bound"} < set(statements(steady).verified)
    weaker = statements(replace(steady, makespan_bound=steady.makespan_bound - 1, period_bound=2.0))
    assert weaker.false == []
    assert weaker.open["makespan_bound"] == "it is true, but busy devices and chains alone give 33 s"
    assert weaker.open["period_bound"] == "it is true, but busy devices and chains alone give 3 s"


@pytest.mark.parametrize(("changes", "fault"), [
    ({"first": 9}, "repetend: first is 9, but no"),
    ({"count": 99}, "repetend: device 'gpu0' repeats its order"),
    ({"micro_batches": 2}, "repetend: device 'gpu0' repeats its order"),
])
def test_a_false_repetend_is_refused(steady: Schedule, changes: dict[str, int], fault: str) -> None:
    assert steady.repetend is not None
    assert violations(replace(steady, repetend=replace(steady.repetend, **changes)))[0].startswith(fault)


def test_a_repetend_that_fewer_micro_batches_make_is_not_checked(steady: Schedule) -> None:
    assert steady.repetend is not None
    first, count = steady.repetend.first, steady.repetend.count
    twice = replace(steady, repetend=Repetend(first // 2 + 1, count // 2 - 1, 2))
    found = statements(twice)
    assert found.false == []
    assert found.open["repetend.micro_batches"] == "fewer micro-batches repeat as well"
    assert "period" in found.verified


def test_a_repetend_below_the_work_is_refused(steady: Schedule) -> None:
    low = steady.with_solver(repetend_period=2.0, repetend_period_bound=2.0, steady_bound=2.0)
    assert verdict(low).faults == [
        "solver: repetend_period is 2 s, and the busiest device works 3 s for each micro-batch"]


def test_a_period_at_which_blocks_wait_for_their_time_is_true() -> None:
    """Blocks that start every 3 although they could every 2."""
    from tests.solver.judge.test_validate import block, problem
    from tests.solver.judge.test_validate import schedule as timed

    alone = problem(block("a", duration=2))
    slow = timed(alone, ("a", 0, 0), ("a", 1, 3), ("a", 2, 6), repetend=Repetend(0, 3), period=3.0)
    assert violations(slow) == []
    assert violations(replace(slow, period=4.0)) == [
        "period is 4 ms, but the repetend takes 2 ms per micro-batch when it is repeated"]


@pytest.mark.parametrize(("key", "value", "fault"), [
    ("latency", 1.0, "solver: latency is 1 s, but the longest micro-batch takes"),
    ("bound_over_placements", 99.0, "solver: bound_over_placements is 99 s, above the makespan of"),
    ("repetend_period", 2.0, "solver: repetend_period_bound is 3 s, above repetend_period of 2 s"),
    ("steady_bound", 4.0, "solver: steady_bound is 4 s, above period of 3 s"),
    ("repetend_period_bound", 4.0, "solver: repetend_period_bound is 4 s, above repetend_period of 3 s"),
    ("latency_period", 2.0, "solver: latency_period is 2 s, and the period of 3 s is longer"),
    ("gpu_memory", [1, 1, 1], "solver: static_memory is 5 on device 0, gpu_memory 1 and"),
    ("placements", 3, "solver: placements is 3, but alternatives lists 1"),
])
def test_a_false_number_of_the_solver_is_refused(steady: Schedule, key: str, value: Any, fault: str) -> None:
    known = steady.with_solver(
        static_memory=[5, 5, 5], gpu_memory=[8, 8, 8], placements=1, placement="here",
        alternatives=[{"placement": "here", "bound": 1.0, "makespan": steady.makespan, "verdict": "chosen"}])
    assert verdict(known).faults == []
    assert verdict(known.with_solver(**{key: value})).faults[0].startswith(fault)


@pytest.mark.parametrize(("entries", "fault"), [
    ([], "a list of placements of which the chosen one is not this placement"),
    ([{"placement": "here", "bound": 1.0, "makespan": 3.0, "verdict": "chosen"}],
     "a list in which the chosen placement takes 3 s"),
])
def test_alternatives_that_are_of_another_schedule_are_refused(steady: Schedule, entries: Any, fault: str) -> None:
    [found] = verdict(steady.with_solver(placement="here", alternatives=entries)).faults
    assert fault in found


def test_an_unrolled_schedule_states_nothing_of_the_one_it_was(steady: Schedule) -> None:
    longer = unroll(steady.with_solver(
        placement="here", placements=1, bound_over_placements=30.0,
        alternatives=[{"placement": "here", "bound": 1.0, "makespan": steady.makespan, "verdict": "chosen"}]), 20)
    assert verdict(longer).faults == []
    assert not {"alternatives", "bound_over_placements", "history"} & set(longer.solver)


def test_peaks_are_exact() -> None:
    """Floats that do not add up: ten times 0.1 is 1."""
    from tests.solver.judge.test_validate import block, problem
    from tests.solver.judge.test_validate import schedule as timed

    leaving = timed(problem(block("a", memory=[0.1])), *(("a", m, float(m)) for m in range(10)))
    value = schedule_to_json(leaving)
    assert judge_claims({**value, "peak_memory": [1]}, schedule_from_json(value)).false == []
    assert judge_claims({**value, "peak_memory": [1.00000001]}, schedule_from_json(value)).false != []


@pytest.mark.parametrize(("changed", "fault"), [
    ({"with": 4.0}, "overlap is said to lead to 4"),
    ({"without": 1.0}, "overlap is not possible: without is 1"),
    ({"bound": 1e6}, "overlap is not possible: bound is"),
    ({"bound_over_placements": 1e6}, "overlap is not possible: bound_over_placements is"),
    ({"bound": 2.0}, "overlap is said to have a bound of 2 s here, and the schedule's is"),
    ({"taken": False}, "overlap is said not to be taken, and to lead from 100000 s to"),
    ({"best_without_options": 2e5}, "overlap is not possible: the best placement without overlap takes 200000 s"),
    ({"nothing_fits": True}, "overlap is said to be needed for anything to fit, and without it takes 100000 s"),
    ({}, None),
])
def test_what_overlap_brings_is_held_against_the_schedule(steady: Schedule, changed: dict[str, Any],
                                                          fault: str | None) -> None:
    told = {"taken": True, "without": 1e5, "with": steady.makespan, "bound": steady.makespan_bound,
            "best_without_options": None, "bound_over_placements": 1.0, **changed}
    found = verdict(replace(steady, choices={"sums": "beside"}).with_solver(overlap=told))
    assert [entry for entry in found.faults if "overlap" in entry] == [
        entry for entry in found.faults if fault and fault in entry]
    assert bool(found.faults) == bool(fault)
    assert fault or "solver.overlap" in found.not_checked


@pytest.mark.parametrize("told", [{"nothing": 3}, {"with": 1.0}, "much", {"taken": 1, "with": 1.0}])
def test_what_overlap_brings_has_a_shape(steady: Schedule, told: object) -> None:
    with pytest.raises(FormatError, match="overlap"):
        schedule_from_json({**schedule_to_json(steady), "solver": {**steady.solver, "overlap": told}}, "here")
    fine = {**schedule_to_json(steady), "solver": {**steady.solver, "overlap": {"nothing": "no collective"}}}
    assert not verdict(schedule_from_json(fine, "here")).faults
