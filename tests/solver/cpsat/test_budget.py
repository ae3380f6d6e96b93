"""Some of what is left of a budget: a number, a slice, a budget of its own."""

from __future__ import annotations

import math

import pytest
from ortools.sat.python import cp_model

from weft.solver.cpsat.budget import Budget, Pace
from weft.solver.cpsat.solve import run


def still(seconds: float, deterministic: float | None = None) -> Budget:
    """A budget whose clock stands still."""
    return Budget(seconds=seconds, deterministic=deterministic, now=lambda: 0.0)


@pytest.mark.parametrize("budget", [still(10.0), still(100.0, 10.0)])
def test_a_share_is_of_what_ends_the_search(budget: Budget) -> None:
    assert budget.share(0.2) == 2.0
    assert budget.share(0.2, at_most=1.5) == 1.5


def test_a_slice_ends_by_what_the_budget_has_used() -> None:
    budget = still(math.inf)
    budget.deterministic_used = 3.0
    time = budget.slice(2.0, each=1.5)
    assert time.left == 1.5 and not time.spent
    assert time.at_most(0.5).left == 0.5 and time.at_most(9.0).each == 1.5
    budget.deterministic_used = 4.5
    assert time.left == 0.5
    budget.deterministic_used = 5.5
    assert time.left == 0.0 and time.spent and not budget.spent


def test_a_slice_is_of_its_share_where_that_is_less() -> None:
    budget = still(math.inf, 10.0)
    assert budget.slice(4.0, share=0.1).left == 1.0
    assert budget.slice(4.0, share=0.9).left == 4.0
    assert budget.slice(20.0).left == 20.0  # what is left limits every solve in any case


def test_a_slice_is_spent_with_its_budget() -> None:
    budget = still(10.0)
    time = budget.slice(2.0)
    budget.interrupted = True
    assert time.spent and time.left == 2.0


@pytest.mark.parametrize(("whole", "seconds", "deterministic"), [
    (still(10.0), 4.0, None),
    (still(10.0, 5.0), 10.0, 2.0),
])
def test_a_part_has_an_account_of_its_own(whole: Budget, seconds: float, deterministic: float | None) -> None:
    whole.seed, whole.workers = 7, 3
    with whole.part(0.4) as part:
        assert (part.seconds, part.deterministic, part.seed, part.workers) == (seconds, deterministic, 7, 3)
        part.deterministic_used += 1.0
        part.interrupted = True
        assert whole.deterministic_used == 0.0 and not whole.interrupted
    assert whole.deterministic_used == 1.0 and whole.interrupted


def test_what_runs_side_by_side_comes_in_order_and_ctrl_c_ends_it() -> None:
    budget = Budget(workers=3)
    assert budget.side_by_side(lambda n: n * n, range(9)) == [n * n for n in range(9)]

    def interrupted(_: int) -> int:
        raise KeyboardInterrupt

    assert budget.side_by_side(interrupted, range(3)) is None and budget.interrupted


@pytest.mark.parametrize("pace", [Pace(), Pace(2.0, 0.25)])
def test_a_solve_is_charged_by_its_pace(pace: Pace) -> None:
    model = cp_model.CpModel()
    places = [model.new_int_var(0, 5, "") for _ in range(6)]
    model.add_all_different(places)
    model.add(places[0] < places[1])
    budget = Budget(deterministic=50.0, pace=pace)
    outcome = run(model, budget)
    own = outcome.solver.response_proto.deterministic_time
    assert outcome.found and own > 0
    assert budget.deterministic_used == pytest.approx(pace.second * own + pace.constraint * 2)
    assert outcome.solver.parameters.max_deterministic_time == pytest.approx(50.0 / pace.second)
    with budget.part(0.5) as part:
        assert part.pace is pace
