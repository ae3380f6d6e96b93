"""Local search as a phase: with the compiled kernel and without, for makespans and spans."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.oracles.lanes import drawn_with_lanes
from tests.support.builders import pipeline, uneven, v
from weft.solver import Budget, Problem, validate
from weft.solver.control import compiled as binary
from weft.solver.control.clock import OutOfTime
from weft.solver.judge.spans import span_of
from weft.solver.orders import local_search
from weft.solver.orders.twin import TwinKernel
from weft.solver.step.goals import GOALS
from weft.solver.step.phases.first_schedule import FirstSchedule
from weft.solver.step.phases.moves import Moves
from weft.solver.step.search import Search, solve

V = uneven(pipeline(v(3), memory=4), random.Random(0))
#: Deterministic seconds in which local search has its turn.
EFFORT = 0.005


def started(objective: str = "makespan", problem: Problem = V) -> Search:
    """A search with a first schedule."""
    state = Search(problem, 6, Budget(deterministic=EFFORT), objective=objective)
    list(FirstSchedule().steps(state))
    return state


def test_better_schedules_are_offered() -> None:
    state = started()
    known = state.incumbent.best
    assert known is not None and Moves().due(state)
    list(Moves(at_most=EFFORT).steps(state))
    assert state.incumbent.best is not None and state.incumbent.best.makespan < known.makespan
    assert state.incumbent.name == "weft" and state.budget.deterministic_used <= 1.2 * EFFORT


def test_what_was_found_before_the_time_was_over_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    state = started()
    known, anneal = state.incumbent.best, TwinKernel.anneal

    def stopped(*arguments: Any) -> int:
        anneal(*arguments)
        raise OutOfTime

    monkeypatch.setattr(binary, "why_not", lambda: "it is slow")
    monkeypatch.setattr(TwinKernel, "anneal", stopped)
    monkeypatch.setattr(local_search, "_notice", lambda why: None)
    next(iter(Moves(at_most=EFFORT).steps(state)))
    assert known is not None and state.incumbent.best is not None
    assert state.incumbent.best.makespan < known.makespan


def test_there_is_an_answer_without_the_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binary, "why_not", lambda: "there is none")
    monkeypatch.setattr(local_search, "_notice", local_search._notice.__wrapped__)
    with pytest.warns(RuntimeWarning, match="not used, as there is none;"):
        found = solve(V, 6, effort=EFFORT)
    validate(found)


def test_both_kernels_give_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    if binary.why_not() is not None:
        pytest.skip("there is no compiled kernel")
    compiled = solve(V, 6, effort=EFFORT)
    monkeypatch.setattr(binary, "why_not", lambda: "it is slow")
    monkeypatch.setattr(local_search, "_notice", lambda why: None)
    monkeypatch.setattr(local_search, "_TWIN", 1)  # it is charged more, and would try fewer moves
    assert solve(V, 6, effort=EFFORT).operations == compiled.operations


def test_smaller_spans_are_offered() -> None:
    state = started("span")
    known = state.incumbent.best
    assert known is not None and Moves().due(state)
    list(Moves(at_most=EFFORT).steps(state))
    assert state.incumbent.best is not None and state.incumbent.best.value < known.value
    assert state.incumbent.best.value == pytest.approx(span_of(state.incumbent.best)[0])
    validate(state.incumbent.best)


@pytest.mark.parametrize(("problem", "objectives"), [(V, {"makespan", "span"}),
                                                     (drawn_with_lanes(3, balanced=True), {"makespan"})])
def test_it_knows_makespans_and_spans_by_orders_alone(problem: Problem, objectives: set[str]) -> None:
    """Not the rate; and what lanes hold that hangs on times is kept for makespans only."""
    assert {objective for objective in GOALS if Moves().due(started(objective, problem))} == objectives
