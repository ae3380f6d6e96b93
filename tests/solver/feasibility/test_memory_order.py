"""Refusals and what they say: proven, exact or called at most and at least, and open where time ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import weft
from tests.oracles.generated import Drawn, drawn
from tests.oracles.whole import fits
from tests.support import REPROS, pipeline, refusal, shows, v
from weft.app.lib.case import Case, CasePlacement
from weft.app.solving.solve import solve_case
from weft.solver import Budget, Schedule, load_problem, save_problem, time_orders, validate
from weft.solver.baselines.lib import sequential
from weft.solver.bounds.load import load_bound
from weft.solver.feasibility import infeasible, memory_order
from weft.solver.feasibility.infeasible import Infeasible, NoneFound, require_room
from weft.solver.feasibility.memory_order import PlaceModel, device_rows, find_room
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.problem import Block, BlockKind, Device, Problem
from weft.solver.step.phases import first_schedule
from weft.solver.step.search import Search, solve
from weft.solver.ticks import TickProblem


def repro(name: str) -> Problem:
    return load_problem(REPROS / f"{name}.json")


def refused(problem: Problem, micro_batches: int) -> Infeasible:
    with pytest.raises(Infeasible) as caught:
        solve(problem, micro_batches, effort=5)
    assert not isinstance(caught.value, NoneFound)
    return caught.value


def judged(case: Drawn, order: tuple[tuple[int, int], ...]) -> None:
    """``order`` makes a schedule that fits."""
    rows = device_rows(TickProblem.of(case.problem), order)
    validate(Schedule(case.problem, case.micro_batches, time_orders(case.problem, case.micro_batches, rows), 0.0))


# -- whether anything fits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["states", "model"])
def test_what_fits_is_found_and_nothing_else(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By states alone and by the model alone, against all orders; among them many that no known schedule finds."""
    if way == "model":
        monkeypatch.setattr(memory_order, "_FEW_LOOKS", 0)
        monkeypatch.setattr(memory_order, "_MOST_LOOKS", 0)
    else:
        monkeypatch.setattr(memory_order, "_MOST_OPERATIONS", 0)
    found = []
    for number in range(150):
        case = drawn(number, most_operations=16)
        room = find_room(TickProblem.of(case.problem), case.micro_batches, Budget())
        assert room.decided
        assert (room.order is not None) == fits(case.problem, case.micro_batches), number
        if room.order is not None:
            judged(case, room.order)
        found.append(room.order is not None)
    assert 30 < sum(found) < 120


def test_a_first_schedule_is_found_where_no_known_one_fits() -> None:
    schedule = solve(repro("gives-before-it-takes"), 2, effort=5)
    assert (schedule.makespan, schedule.status) == (6, "optimal")
    assert schedule.solver["name"] == "weft"


def test_without_known_schedules_every_problem_is_still_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of the search then finds a schedule, or a proof, and a steady state of one micro-batch."""
    monkeypatch.setattr(first_schedule, "STARTS", {})
    monkeypatch.setattr(sequential, "SEARCH_LIMIT", -100)
    for number in range(60):
        case = drawn(number)
        try:
            schedule = solve(case.problem, case.micro_batches, effort=0.5)
        except NoneFound:
            raise
        except Infeasible:
            assert not fits(case.problem, case.micro_batches)
            continue
        validate(schedule)
        instance = TickProblem.of(case.problem)
        if fits(case.problem, 1) and instance.balanced:
            assert one_at_a_time(instance).period > 0


# -- what would work -------------------------------------------------------------------------------------------------


def test_the_least_memory_counts_orders_across_micro_batches() -> None:
    """Both micro-batches' b3 first, then both b0."""
    found = refused(repro("leaves-memory-least"), 2)
    (shortage,) = found.shortages
    assert (shortage.capacity, shortage.least, shortage.exact) == (1, 2, True)
    assert "1 u too little: the least that works is 2 u" in str(found)


def test_the_most_micro_batches_count_orders_across_them() -> None:
    found = refused(repro("leaves-memory-most"), 3)
    assert (found.most_micro_batches, found.most_exact) == (2, True)
    assert str(found).endswith("; 2 micro-batches would fit")
    assert solve(repro("leaves-memory-most"), 2, effort=2).makespan == 4


def test_what_is_not_known_to_be_the_least_is_called_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infeasible, "_MOST_OPERATIONS", 0)
    found = refused(repro("leaves-memory-least"), 2)
    (shortage,) = found.shortages
    assert (shortage.least, shortage.exact) == (3, False)
    assert "device 'g0' has 1 u, at most 2 u too little: 3 u works, and less may" in str(found)


@pytest.mark.slow
def test_what_is_not_known_to_be_the_most_is_called_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 40 micro-batches 9 or 10 fit: where the last question stays open, the answer is at least the one before."""
    problem = Problem("pile", (Device("gpu", 21),), (
        Block("a", BlockKind.FORWARD, (0,), 1, (1,), (2,)), Block("b", BlockKind.FORWARD, (0,), 1, (1,), (0,))))
    exact = refused(problem, 40)
    assert exact.most_exact
    assert exact.most_micro_batches == max(n for n in range(1, 12) if fits(problem, n))
    asked = find_room

    def open_above(instance: TickProblem, micro_batches: int, budget: Budget, deterministic: float = 9.9) -> object:
        if micro_batches > 7:
            return memory_order.MemoryOrder()
        return asked(instance, micro_batches, budget, deterministic)

    monkeypatch.setattr(infeasible, "find_room", open_above)
    with pytest.raises(Infeasible) as caught:
        require_room(TickProblem.of(problem), 40, Budget())
    assert not caught.value.most_exact
    assert caught.value.most_micro_batches is not None
    assert fits(problem, caught.value.most_micro_batches)
    assert f"at least {caught.value.most_micro_batches} micro-batch" in str(caught.value)


def test_a_proof_by_cp_sat_alone_gets_a_second_opinion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody says that nothing fits, but an order that does is found: then nothing is refused."""
    problem = pipeline(v(2), memory=4)

    class Wrong(PlaceModel):
        def least_excess(self, budget: Budget, deterministic: float) -> memory_order.Excess | None:
            return memory_order.Excess({0: 1}, tuple(self.operations), True)

    monkeypatch.setattr(infeasible, "PlaceModel", Wrong)
    assert require_room(TickProblem.of(problem), 4, Budget()) is not None


# -- what stays open -------------------------------------------------------------------------------------------------


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch) -> Problem:
    """A problem of which nobody finds out whether anything fits."""
    monkeypatch.setattr(first_schedule, "STARTS", {})
    monkeypatch.setattr(infeasible, "require_room", lambda *_: None)
    return repro("gives-before-it-takes")


def test_nothing_is_called_impossible_without_a_proof(undecided: Problem, tmp_path: Path) -> None:
    with pytest.raises(NoneFound, match="not proven that there is none; give it more time or memory"):
        solve(undecided, 2, effort=1)
    save_problem(undecided, tmp_path / "problem.json")
    said = refusal("solve", tmp_path / "problem.json", "-n", "2", "--effort", "1", "--quiet", status=1)
    assert "was found within the limit" in said
    told = shows("explain", tmp_path / "problem.json", "-n", "2", "--effort", "1", "--quiet", "--json", status=1)
    assert json.loads(told)["refusal"]["proven"] is False
    with pytest.raises(NoneFound):
        weft.latency(undecided, period=100, effort=1)


def test_a_search_that_is_stopped_before_its_first_schedule_says_so(undecided: Problem) -> None:
    search = Search(undecided, 2, Budget())
    next(search.steps())
    with pytest.raises(NoneFound):
        search.result()


def test_a_placement_that_stays_open_is_not_ruled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bound still counts among those of all placements, and it is no reason to say that nothing fits."""
    hopeless, unknown = pipeline(v(2), memory=1), repro("gives-before-it-takes")
    asked = require_room

    def open_for_one(instance: TickProblem, *limits: object) -> object:
        return None if instance.problem.name == unknown.name else asked(instance, *limits)  # type: ignore[arg-type]

    monkeypatch.setattr(infeasible, "require_room", open_for_one)
    placements = tuple(CasePlacement(f"p{i}", problem, {"placement": f"p{i}"})
                       for i, problem in enumerate((hopeless, unknown)))
    with pytest.raises(NoneFound):
        solve_case(Case("two", placements, 2), weft.SearchOptions(effort=1))
    easy = CasePlacement("p2", pipeline(v(2), memory=8), {"placement": "p2"})
    schedule = solve_case(Case("three", (*placements, easy), 2), weft.SearchOptions(effort=1))
    assert schedule.solver["bound_over_placements"] <= load_bound(unknown, 2) * (1 + 1e-6)
