"""Makespans between bound and schedule, asked one after the other until the best is proven."""

from __future__ import annotations

import random

import pytest

from tests.oracles.whole import least_makespan
from tests.support.builders import pipeline, uneven, v
from weft.solver.cpsat.budget import Budget
from weft.solver.step.phases.first_schedule import FirstSchedule
from weft.solver.step.phases.shorter import Shorter
from weft.solver.step.search import Search


@pytest.mark.parametrize("seed", range(4))
def test_bound_and_schedule_meet_at_the_least_makespan(seed: int) -> None:
    problem = uneven(pipeline(v(2), memory=3), random.Random(seed))
    state = Search(problem, 3, Budget(deterministic=100.0))
    list(FirstSchedule().steps(state))
    assert Shorter().due(state) or state.done
    last = state.makespan_bound
    for _ in Shorter().steps(state):
        assert last <= state.makespan_bound <= state.value
        last = state.makespan_bound
    assert state.value == last == least_makespan(problem, 3)


def test_other_objectives_are_not_asked_for() -> None:
    state = Search(pipeline(v(2), memory=3), 3, Budget(deterministic=1.0), objective="span")
    list(FirstSchedule().steps(state))
    assert not Shorter().due(state)
