"""Attempts that race: all outcomes come back, and one that decides stops the others."""

from __future__ import annotations

import random
import time

import pytest
from ortools.sat.python import cp_model

from weft.solver.cpsat import solve
from weft.solver.cpsat.budget import Budget
from weft.solver.cpsat.solve import Attempt, Outcome, confirmed, proven, race, run


def pigeons(count: int, holes: int) -> cp_model.CpModel:
    """``count`` pigeons in ``holes`` holes."""
    model = cp_model.CpModel()
    sits = [model.new_int_var(1, holes, f"pigeon {pigeon}") for pigeon in range(count)]
    model.add_all_different(sits)
    return model


def market_split() -> cp_model.CpModel:
    """Five markets of fifty customers, each to be halved exactly: far out of reach (Cornuejols and Dawande, 1998)."""
    draw, model = random.Random(1), cp_model.CpModel()
    sides = [model.new_bool_var(f"customer {customer}") for customer in range(50)]
    for _ in range(5):
        demand = [draw.randint(0, 99) for _ in sides]
        model.add(sum(amount * side for amount, side in zip(demand, sides, strict=True)) == sum(demand) // 2)
    return model


def decided(outcome: Outcome) -> bool:
    return outcome.found or outcome.infeasible


def test_all_outcomes_come_in_order() -> None:
    budget = Budget()
    first, second = race([Attempt(pigeons(3, 2)), Attempt(pigeons(3, 3))], budget)
    assert first.infeasible and second.found
    spent = sum(outcome.solver.response_proto.deterministic_time for outcome in (first, second))
    assert budget.deterministic_used == pytest.approx(spent)


@pytest.mark.parametrize("easy_first", [True, False])
def test_the_first_decision_stops_the_others(easy_first: bool) -> None:
    easy, hard = Attempt(pigeons(3, 3)), Attempt(market_split(), relaxation=False)
    attempts = [easy, hard] if easy_first else [hard, easy]
    outcomes = race(attempts, Budget(seconds=60.0), decided)
    stopped = outcomes[attempts.index(hard)]
    assert outcomes[attempts.index(easy)].found
    assert not decided(stopped) and stopped.solver.wall_time < 30.0


def test_each_attempt_keeps_its_own_limit() -> None:
    outcome, = race([Attempt(market_split(), 0.01, relaxation=False)], Budget())
    assert not decided(outcome) and outcome.solver.response_proto.deterministic_time < 0.5


def test_the_clock_ends_no_solve_that_has_an_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with much else to do gives a solve a tenth of its time: here none while 0.5 seconds pass."""
    monkeypatch.setattr(solve, "_LEAST_CPU", 0.1)
    monkeypatch.setattr(solve, "_CPU", 0.0)
    whole = cp_model.CpSolver.solve

    def late(solver: cp_model.CpSolver, model: cp_model.CpModel) -> cp_model.CpSolverStatus:
        assert solver.parameters.max_time_in_seconds == float("inf")
        time.sleep(0.5)
        return whole(solver, model)

    monkeypatch.setattr(cp_model.CpSolver, "solve", late)
    assert run(pigeons(3, 3), Budget(deterministic=1.0), deterministic=0.5).found


def test_a_solve_whose_deterministic_time_stands_still_ends_by_its_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve, "_LEAST_CPU", 0.3)
    monkeypatch.setattr(solve, "_CPU", 0.0)
    outcome = run(market_split(), Budget(deterministic=1000.0), deterministic=1000.0, relaxation=False)
    assert not decided(outcome) and outcome.solver.response_proto.deterministic_time < 100.0


def test_a_refused_model_is_said() -> None:
    model = cp_model.CpModel()
    x = model.new_int_var(0, 1, "x")
    model.add_hint(x, 0)
    model.add_hint(x, 1)
    with pytest.raises(AssertionError, match="CP-SAT refuses the model"):
        run(model, Budget())


def test_what_is_infeasible_stays_so_and_takes_both_times() -> None:
    budget = Budget()
    assert proven(pigeons(4, 3), budget).infeasible
    assert budget.deterministic_used >= 0


def test_a_wrong_proof_is_disproved() -> None:
    """The first outcome is a proof of another model: as if CP-SAT had been wrong."""
    wrong = run(pigeons(4, 3), Budget(), presolve=True)
    assert wrong.infeasible
    outcome = confirmed(Attempt(pigeons(3, 3), presolve=True), wrong, Budget())
    assert outcome.found


def test_a_solution_needs_no_second_configuration() -> None:
    budget = Budget()
    attempt = Attempt(pigeons(3, 3), presolve=True)
    found = run(attempt.model, Budget(), presolve=True)
    assert confirmed(attempt, found, budget) is found
    assert budget.deterministic_used == 0.0 and isinstance(found, Outcome)
