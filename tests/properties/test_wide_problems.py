"""Jobs and classes in rounds have the least makespan of a walk through all that can happen."""

from __future__ import annotations

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from tests.oracles.wide import TooLarge, least_makespan
from tests.support import drawn_run, drawn_wide, for_all, keep_or_recompute
from weft.solver.problem import Problem
from weft.solver.problem.rounds import Rounds, Run
from weft.solver.step.search import Infeasible, solve


def least_of_search(problem: Problem, run: Run) -> float | None:
    try:
        found = solve(Rounds(problem, run).problem, run.rounds, time_limit=3000, effort=1.0)
    except Infeasible:
        return None
    assert found.gap == 0
    return found.makespan


@pytest.mark.parametrize(("classes", "jobs"), [(True, False), (False, True), (True, True)])
@for_all(seed=st.integers(0, 10**6), tries=25)
def test_rounds_have_the_least_makespan_of_all_that_can_happen(seed: int, classes: bool, jobs: bool) -> None:
    problem = drawn_wide(seed, choices=False, classes=classes, jobs=jobs)
    run = drawn_run(problem, seed)
    try:
        least = least_makespan(problem, run)
    except TooLarge:
        assume(False)
    assert least_of_search(problem, run) == least


@for_all(seed=st.integers(0, 10**6), tries=25)
def test_pipelines_of_micro_batches_that_differ(seed: int) -> None:
    problem = keep_or_recompute(seed, classes=True, choices=False)
    run = drawn_run(problem, seed)
    try:
        least = least_makespan(problem, run)
    except TooLarge:
        assume(False)
    assert least_of_search(problem, run) == least
