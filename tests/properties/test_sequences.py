"""The best order, and the best classes, of micro-batches where options remove jobs and classes: that of trying all."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from tests.oracles.wide import TooLarge, least_over_assignments
from tests.support.examples import for_all
from tests.support.wide_problems import drawn_run, vanishing
from weft.solver import Infeasible, validate
from weft.solver.choices.sequences.solve import solve_sequence
from weft.solver.judge.choice_rules import violations_of_choice
from weft.solver.problem import Problem
from weft.solver.problem.rounds import Run


def _runs(problem: Problem, run: Run, *, any_class: bool) -> Iterator[Run]:
    """All orders of the micro-batches of ``run``, or all sequences of as many."""
    rows: list[list[tuple[str | None, ...]]] = []
    for job, row in run.classes.items():
        names = problem.classes_of(job) if any_class else ()
        rows.append(sorted(set(product(names, repeat=len(row)) if names else permutations(row)), key=str))
    for taken in product(*rows):
        yield Run(dict(zip(run.classes, taken, strict=True)), 1)


@pytest.mark.slow
@pytest.mark.parametrize("any_class", [False, True])
@for_all(seed=st.integers(0, 10**6), tries=20)
def test_it_is_the_best_of_all_orders_under_all_options(seed: int, any_class: bool) -> None:
    problem = vanishing(seed)
    run = drawn_run(problem, seed)
    assume(run.micro_batches <= 4)
    try:
        values = [least_over_assignments(problem, one)[0] for one in _runs(problem, run, any_class=any_class)]
    except TooLarge:
        assume(False)
    least = min((value for value in values if value is not None), default=None)
    try:
        found = solve_sequence(problem, run, any_class=any_class, time_limit=60, effort=5.0)
    except Infeasible:
        assert least is None
        return
    validate(found)
    assert not violations_of_choice(found, problem)
    assert found.makespan == least and found.gap == 0
