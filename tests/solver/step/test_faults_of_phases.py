"""Whatever fails in a search after a valid schedule exists: that schedule is returned, with the reason."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import weft
from tests.support import chain, pipeline, slow, v, valid
from weft.app.lib.case import Case, CasePlacement
from weft.app.solving.solve import solve_case
from weft.solver import Problem, Schedule, baseline, validate
from weft.solver.period.improvers.starts import STARTS
from weft.solver.step.search import Progress, Search, solve


class Fault(Exception):
    """What is injected."""


#: What each phase calls, by the place where the search knows it.
CALLED = [f"weft.solver.{place}" for place in (
    "step.proven.by_contraction", "step.proven.implied_order", "step.proven.steady_bound", "step.incumbent.repeat",
    "step.state.takes_before_giving", "step.phases.steady_state.periodic_seed", "step.phases.steady_state.find_period",
    "period.shorten.shorten_latency", "step.edges.complete", "step.order_model.reorder",
    "step.phases.polish.FixedOrder", "period.reductions.multi_batch.in_copies",
    "period.reductions.multi_batch.repeat_copies", "step.phases.longer_periods.find_period",
    "bounds.states.system_of", "bounds.states.search")]

#: Of each way to go on after a fault.
SOME = [f"weft.solver.{place}" for place in (
    "step.proven.by_contraction", "step.incumbent.repeat", "step.phases.steady_state.find_period",
    "step.edges.complete", "step.order_model.reorder", "step.phases.polish.FixedOrder", "bounds.states.search")]

STARTS_KNOWN = "weft.solver.step.phases.first_schedule.STARTS"

pytestmark = pytest.mark.faults


#: Micro-batches, and the effort with which the search comes by all phases.
COUNT, EFFORT = 16, 0.3


def problem() -> Problem:
    """One of which no bound is met early, so that all phases have work."""
    return pipeline(v(2), forward=3, split=(4, 2), memory=3, lag=0.5)


def failing(*_: Any, **__: Any) -> Any:
    raise Fault("injected")


def after(calls: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` for so many calls, then the fault."""
    left = [calls]

    def called(*arguments: Any, **settings: Any) -> Any:
        left[0] -= 1
        return function(*arguments, **settings) if left[0] >= 0 else failing()

    return called


def best_without_search() -> float:
    return baseline("greedy", problem(), COUNT).makespan


@pytest.mark.parametrize(("name", "calls"), [
    *((name, 0) if name in SOME else slow(name, 0) for name in CALLED), *(slow(name, 1) for name in SOME)])
def test_a_fault_in_a_phase_costs_no_schedule(name: str, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    met = []
    working = after(calls, pkgutil.resolve_name(name))

    def noted(*arguments: Any, **settings: Any) -> Any:
        try:
            return working(*arguments, **settings)
        except Fault:
            met.append(name)
            raise

    monkeypatch.setattr(name, noted)
    if ".states." not in name:  # they prove this one before the others have their turn
        monkeypatch.setattr("weft.solver.step.phases.states._MOST_OPERATIONS", 0)
    # Longer periods are looked for where nothing beside them has proven the best.
    late = "multi_batch" in name or "longer_periods" in name
    without = {"Moves", "Polish", "Devices"} if late else set()
    schedule = valid(solve(problem(), COUNT, effort=EFFORT, without=without))
    assert schedule.makespan <= best_without_search() * (1 + 1e-9)
    assert ("Fault: injected" in schedule.solver.get("stopped", "")) == bool(met)
    assert met or calls


@pytest.mark.parametrize("name", [slow(name) if number else name for number, name in enumerate(STARTS)])
def test_a_known_schedule_that_fails_leaves_the_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STARTS_KNOWN, {**STARTS, name: failing})
    schedule = valid(solve(problem(), 2, effort=0.01))
    assert schedule.solver["stopped"].startswith("baselines: Fault")


@pytest.mark.slow
def test_a_schedule_that_the_judge_refuses_is_not_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timing, or the judge, fails on what a phase offers: the best before it stays."""
    for name in ("goals.time_orders", "incumbent.validate"):
        monkeypatch.setattr(f"weft.solver.step.{name}", failing)
        schedule = solve(problem(), COUNT, effort=EFFORT, start=baseline("greedy", problem(), COUNT))
        monkeypatch.undo()
        validate(schedule)
        assert "Fault: injected" in schedule.solver["stopped"]


def test_a_fault_before_any_schedule_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STARTS_KNOWN, {})
    monkeypatch.setattr("weft.solver.feasibility.infeasible.require_room", failing)
    with pytest.raises(Fault):
        solve(problem(), COUNT, effort=1)


def test_what_a_listener_raises_is_for_the_caller() -> None:
    def listener(progress: Progress) -> None:
        if progress.phase != "baselines":
            raise Fault("heard enough")

    with pytest.raises(Fault, match="heard enough"):
        solve(problem(), COUNT, effort=EFFORT, on_progress=listener)
    with pytest.raises(Fault, match="heard enough"):
        weft.solve(problem(), micro_batches=COUNT, effort=EFFORT, on_progress=listener)


def test_a_fault_on_one_placement_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_fails(*arguments: Any, **settings: Any) -> Search:
        if arguments[0].name == "odd":
            failing()
        return Search(*arguments, **settings)

    odd = replace(pipeline(chain(2), forward=4, split=(4, 2)), name="odd")
    case = Case("two", tuple(CasePlacement(f"p{i}", one, {"placement": f"p{i}"})
                             for i, one in enumerate((problem(), odd))), 8)
    monkeypatch.setattr("weft.solver.portfolio.Search", one_fails)
    schedule: Schedule = solve_case(case, weft.SearchOptions(effort=0.5))
    validate(schedule)
    assert schedule.solver["stopped"] == "p1: Fault: injected"
    assert schedule.solver["bound_over_placements"] <= schedule.makespan
