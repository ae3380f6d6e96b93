"""Rounds of local search: the same for a seed and an effort, no longer than there is time, and only orders that fit."""

from __future__ import annotations

import random

import pytest

from tests.support.builders import any_order, pipeline, uneven, v
from tests.support.kernels import KINDS, case, tight
from weft.solver.cpsat.budget import Budget
from weft.solver.judge.validate import validate
from weft.solver.orders.local_search import LocalSearch
from weft.solver.orders.timed_rows import NEVER
from weft.solver.schedule import Schedule
from weft.solver.ticks import TickProblem
from weft.solver.timing import Orders, time_orders

V = uneven(pipeline(v(3), memory=6), random.Random(0))
#: Deterministic seconds of a few rounds.
EFFORT = 0.02


def searched(budget: Budget) -> tuple[list[int], Orders, float]:
    """The makespan after every round, the orders in the end, and what it took."""
    instance = TickProblem.of(V)
    search, found = LocalSearch(instance, 5, budget), []
    assert search.begin(any_order(V, 5, random.Random(1), in_turn=True).orders)
    while not budget.spent:
        search.round(budget.slice())
        found.append(search.makespan)
    return found, search.orders(), budget.deterministic_used


def test_rounds_charge_what_they_take_and_end_with_the_budget() -> None:
    found, _, used = searched(Budget(deterministic=EFFORT))
    assert len(found) > 1 and found == sorted(found, reverse=True)
    assert EFFORT <= used < 1.2 * EFFORT


def test_a_spent_budget_allows_no_move() -> None:
    budget = Budget()
    search = LocalSearch(TickProblem.of(V), 5, budget)
    assert search.begin(any_order(V, 5, random.Random(1), in_turn=True).orders)
    budget.interrupted = True
    assert not search.round(budget.slice()) and search.idle == 1
    assert search.makespan == NEVER and not budget.deterministic_used


@pytest.mark.parametrize("kind", KINDS)
def test_only_orders_that_fit_come_out(kind: str) -> None:
    fitting = 0
    for some in (change(case(kind, number)) for number in range(6) for change in (lambda given: given, tight)):
        budget = Budget(deterministic=EFFORT / 10)
        search = LocalSearch(some.tables.instance, some.micro_batches, budget)
        if not search.begin(some.tables.orders(some.flat)):
            continue
        while not budget.spent:
            search.round(budget.slice())
        if search.makespan == NEVER:
            with pytest.raises(ValueError, match="no orders that fit are known"):
                search.orders()
            continue
        fitting += 1
        timed = time_orders(some.problem, some.micro_batches, search.orders())
        found = Schedule(some.problem, some.micro_batches, timed, 0.0)
        validate(found)
        assert found.makespan == pytest.approx(some.tables.instance.time(search.makespan))
    assert fitting > 2
