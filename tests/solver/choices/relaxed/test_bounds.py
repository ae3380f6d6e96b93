"""Bounds on all assignments together: never more than the best one, for each objective."""

from __future__ import annotations

from math import isinf

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.alternatives import drawn_alternatives, least_over
from tests.support.examples import examples
from tests.support.wide_problems import drawn_run, keep_or_recompute, wide_runs
from weft.solver.choices.relaxed.bounds import bound_of
from weft.solver.problem import BlockKind, Device
from weft.solver.step.search import solve
from weft.solver.wide.block import WideBlock
from weft.solver.wide.problem import WideProblem
from weft.solver.wide.run import Run


@settings(max_examples=examples(15), deadline=None)
@given(wide_runs())
def test_never_more_than_the_best_makespan(drawn: tuple[WideProblem, Run]) -> None:
    assert bound_of(*drawn, "makespan") <= least_over(*drawn) * (1 + 1e-9)


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(0, 10**6))
def test_never_more_than_the_best_makespan_of_all_kinds_of_options(seed: int) -> None:
    problem = drawn_alternatives(seed, lanes=seed % 3 == 0, classes=seed % 3 == 1)
    run = drawn_run(problem, seed)
    assume(run.micro_batches * len(problem.blocks) < 40)
    assert bound_of(problem, run, "makespan") <= least_over(problem, run) * (1 + 1e-9)


@pytest.mark.parametrize("objective", ["rate", "span"])
@pytest.mark.parametrize("seed", range(4))
def test_never_more_than_the_best_of_other_objectives(seed: int, objective: str) -> None:
    problem = keep_or_recompute(seed)
    best = min(solve(problem.under(options).plain(), 6, objective=objective, effort=3.0).value
               for options in problem.assignments)
    assert 0 < bound_of(problem, Run.of(problem, 6), objective) <= best * (1 + 1e-9)


def test_no_room_for_what_all_options_take() -> None:
    problem = WideProblem("tight", (Device("gpu", 1),), tuple(
        WideBlock("F", BlockKind.OTHER, (0,), 2, (0,), (amount,), when={"way": str(amount)}) for amount in (2, 3)),
        choices={"way": ("2", "3")})
    assert isinf(bound_of(problem, Run.of(problem, 2), "makespan"))
