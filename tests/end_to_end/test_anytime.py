"""Anytime: what a search knew when, in its result and drawn."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import chain, pipeline, shape, v
from weft.app.lib.case import Case, CasePlacement
from weft.app.lib.options import SearchOptions
from weft.app.solving.solve import solve_case
from weft.figures import chart, draw
from weft.figures.drawing import build
from weft.figures.frame import specification
from weft.solver import Progress, Schedule, load_schedule, save_schedule, solve, validate
from weft.solver.control.counts import MOST_ENTRIES, History
from weft.solver.diagnose.critical_path import critical_path


def known_at(entries: list[list[float]], elapsed: float) -> list[float]:
    return [entry for entry in entries if entry[0] <= elapsed][-1][1:]


# -- what is recorded ----------------------------------------------------------------------------------------------


def test_the_history_holds_every_improvement_that_was_reported() -> None:
    seen: list[Progress] = []
    schedule = solve(pipeline(v(4), split=(1, 1), memory=4), 6, effort=2, on_progress=seen.append)
    history = schedule.solver["history"]
    assert [entry[1:] for entry in history] == _improvements(
        [(progress.best.makespan, progress.best.makespan_bound) for progress in seen])
    assert history[-1][1:] == [schedule.makespan, schedule.makespan_bound]
    times = [entry[0] for entry in history]
    assert times == sorted(times)
    assert times[-1] <= schedule.solver["seconds"]


def _improvements(states: list[tuple[float, float]]) -> list[list[float]]:
    found: list[list[float]] = []
    for state in states:
        if not found or list(state) != found[-1]:
            found.append(list(state))
    return found


def test_every_reported_schedule_is_valid_and_carries_the_history_so_far() -> None:
    seen: list[Progress] = []
    solve(shape("nn", 4, 6), 8, effort=1, on_progress=seen.append)
    for progress in seen:
        validate(progress.best)
        history = progress.best.solver["history"]
        assert history[-1][1:] == [progress.best.makespan, progress.best.makespan_bound]
    for earlier, later in pairwise(seen):
        first = earlier.best.solver["history"]
        assert later.best.solver["history"][:len(first)] == first


def test_runs_of_the_same_effort_repeat_but_for_the_times() -> None:
    first, second = (solve(pipeline(v(2), forward=3, split=(4, 2), memory=3), 6, effort=1, seed=3) for _ in range(2))
    assert first.operations == second.operations
    assert [entry[1:] for entry in first.solver["history"]] == [entry[1:] for entry in second.solver["history"]]


def test_a_search_over_placements_has_one_history_of_all_of_them() -> None:
    problems = [pipeline(chain(2), forward=6, split=(8, 4), memory=3),
                pipeline(v(2), forward=3, split=(4, 2), memory=3)]
    case = Case("two", tuple(CasePlacement(f"p{i}", problem, {"placement": f"p{i}"})
                             for i, problem in enumerate(problems)), 6)
    schedule = solve_case(case, SearchOptions(effort=0.6))
    history = schedule.solver["history"]
    assert history[0][0] < history[-1][0]
    assert history[-1][1] == schedule.makespan
    assert history[-1][2] == schedule.solver["bound_over_placements"]
    for earlier, later in pairwise(history):
        assert later[0] >= earlier[0]
        assert later[1] <= earlier[1]
        assert later[2] >= earlier[2]
        assert later[1:] != earlier[1:]


def test_the_history_survives_the_file(tmp_path: Path) -> None:
    schedule = solve(pipeline(chain(2), memory=2), 4, effort=0.3)
    save_schedule(schedule, tmp_path / "schedule.json")
    assert load_schedule(tmp_path / "schedule.json").solver["history"] == schedule.solver["history"]


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 30), st.integers(0, 30)), max_size=700))
def test_a_history_is_short_and_never_says_more_than_was_known(steps: list[tuple[float, int, int]]) -> None:
    """Whatever is reported: the entries only improve, and none is ahead of what was recorded by then."""
    history, elapsed = History(), 0.0
    best, proven = float("inf"), 0.0
    known: list[list[float]] = []
    for wait, makespan, bound in steps:
        elapsed += 0.01 + wait
        best, proven = min(best, makespan), max(proven, bound)
        history.record(elapsed, makespan, bound)
        known.append([round(elapsed, 3), best, min(proven, best)])
        assert len(history.entries) <= MOST_ENTRIES
    for entry in history.to_json():
        assert entry[1] >= known_at(known, entry[0])[0]
        assert entry[2] <= entry[1]
    if steps:
        assert history.entries[-1][1] == best
    for earlier, later in pairwise(history.entries):
        assert later[1] <= earlier[1]


def test_a_long_history_keeps_its_beginning_and_its_end() -> None:
    history = History()
    for i in range(10 * MOST_ENTRIES):
        history.record(i, 10_000 - i, i / 10)
    assert history.entries[0] == [0, 10_000, 0]
    assert history.entries[-1] == [10 * MOST_ENTRIES - 1, 10_000 - 10 * MOST_ENTRIES + 1, (10 * MOST_ENTRIES - 1) / 10]
    assert MOST_ENTRIES / 2 <= len(history.entries) <= MOST_ENTRIES


# -- how it is drawn -------------------------------------------------------------------------------------------------


def with_history(*entries: Any, seconds: float = 10.0) -> Schedule:
    return replace(solve(pipeline(chain(2), memory=2), 4, effort=0.2), solver={"history": entries, "seconds": seconds})


def rows(schedule: Schedule, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = specification(build(schedule, title=None, hover=True))["datasets"][name]
    return found


def test_the_curve_steps_where_best_or_bound_change_and_runs_to_the_end_of_the_search() -> None:
    schedule = with_history([0.01, 20, 10], [0.5, 15, 10], [2.0, 15, 12])
    assert [(row["x"], row["best"], row["bound"]) for row in rows(schedule, "steps")] == [
        (0.01, 20, 10), (0.5, 15, 10), (2.0, 15, 12), (10.0, 15, 12)]
    assert [(row["x"], row["best"]) for row in rows(schedule, "improvements")] == [(0.01, 20), (0.5, 15)]
    assert [row["gap"] for row in rows(schedule, "spans")] == ["100.00%", "50.00%", "25.00%"]


def test_a_history_of_one_instant_has_a_curve() -> None:
    assert rows(with_history([0.0, 16, 16], seconds=0.0), "spans")[0]["gap"] == "0 (proven optimal)"


@pytest.mark.parametrize(("history", "message"), [
    ((), "has no history"), (([1, 2],), "must hold"), (([1, 5, 4], [0.5, 4, 4]), "order of time"),
    (([0.1, float("nan"), 1],), "finite"), (([0.1, "x", 1],), "must hold"), (([-1, 5, 4],), "0 or more")])
def test_a_history_that_means_nothing_is_refused(history: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(with_history(*history), title=None, hover=False)


@pytest.mark.parametrize("make", [lambda: solve(pipeline(chain(3), memory=2, lag=0.5), 4, effort=0.5),
                                  lambda: solve(shape("nn", 4, 6), 4, effort=0.5)])
def test_the_picture_frames_exactly_the_operations_on_the_path(make: Any) -> None:
    schedule: Schedule = make()
    datasets = specification(chart(schedule, critical=True))["datasets"]
    frames = datasets["outlines"]
    on_path = critical_path(schedule).operations
    names = {block.name: i for i, block in enumerate(schedule.problem.blocks)}
    for box in datasets["boxes"]:
        framed = any(frame["x"] - 1e-9 <= box["x"] and box["x2"] <= frame["x2"] + 1e-9 and frame["y"] <= box["y"]
                     and box["y2"] <= frame["y2"] for frame in frames)
        assert framed == ((names[box["block"]], box["micro-batch"]) in on_path)
    assert "outlines" not in specification(chart(schedule))["datasets"]


def test_a_long_schedule_with_its_middle_cut_out_is_marked_too(tmp_path: Path) -> None:
    draw(solve(shape("chain", 4, 4), 300, effort=0.5), tmp_path / "long.svg", critical=True)
    assert "critical path" in (tmp_path / "long.svg").read_text()
