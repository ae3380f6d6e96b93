"""A proof of infeasibility counts where a second configuration finds no solution either."""

from __future__ import annotations

from ortools.sat.python import cp_model

from weft.solver.cpsat.budget import Budget
from weft.solver.cpsat.confirm import confirmed, proven
from weft.solver.cpsat.solve import Attempt, Outcome, run


def pigeons(count: int, holes: int) -> cp_model.CpModel:
    model = cp_model.CpModel()
    model.add_all_different([model.new_int_var(1, holes, f"pigeon {pigeon}") for pigeon in range(count)])
    return model


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
