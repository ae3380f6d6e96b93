"""Choices and orders in one model: the best of all assignments, with its proof."""

from __future__ import annotations

from math import isinf

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from tests.oracles.whole import TooLarge, least_makespan
from tests.support import drawn_run, for_all, wide_runs
from tests.support.alternatives import drawn_alternatives, least_over
from weft.solver import BlockKind, Budget, Device, validate
from weft.solver.choices.whole_model import WholeAnswer, is_small, solve_whole
from weft.solver.wide.block import WideBlock
from weft.solver.wide.problem import WideProblem
from weft.solver.wide.run import Rounds, Run


def _by_brute_force(problem: WideProblem, run: Run) -> float:
    try:
        found = [least_makespan(Rounds(problem.under(options), run).problem, run.rounds, 3000)
                 for options in problem.assignments]
    except TooLarge:
        assume(False)
    return min((float(makespan) for makespan in found if makespan is not None), default=float("inf"))


def _assert_best(found: WholeAnswer | None, best: float) -> None:
    assert found is not None and found.bound == best
    if isinf(best):
        assert found.schedule is None
    else:
        assert found.schedule is not None and found.schedule.makespan == best
        validate(found.schedule)


@for_all(wide_runs(), tries=40)
def test_it_is_brute_force(drawn: tuple[WideProblem, Run]) -> None:
    _assert_best(solve_whole(*drawn, Budget(60)), _by_brute_force(*drawn))


@for_all(st.integers(0, 10**6), st.sampled_from(["plain", "classes", "jobs"]), tries=25)
def test_it_is_brute_force_on_all_kinds_of_options(seed: int, kind: str) -> None:
    problem = drawn_alternatives(seed, classes=kind == "classes", jobs=kind == "jobs")
    run = drawn_run(problem, seed)
    assume(run.micro_batches * len(problem.blocks) < 40)
    _assert_best(solve_whole(problem, run, Budget(60)), _by_brute_force(problem, run))


@for_all(st.integers(0, 10**6), tries=10)
def test_lanes(seed: int) -> None:
    problem = drawn_alternatives(seed, lanes=True)
    run = drawn_run(problem, seed)
    assume(run.micro_batches * len(problem.blocks) < 30)
    _assert_best(solve_whole(problem, run, Budget(60)), least_over(problem, run))


def _two_ways(duration: float = 2) -> WideProblem:
    return WideProblem("ways", (Device("a"), Device("b")), (
        WideBlock("F", BlockKind.OTHER, (0,), duration, when={"way": "here"}),
        WideBlock("F", BlockKind.OTHER, (1,), 3, when={"way": "there"}), WideBlock("G", BlockKind.OTHER, (0,), 2)),
        choices={"way": ("here", "there")})


def test_what_is_known_is_kept() -> None:
    problem = _two_ways()
    run = Run.of(problem, 2)
    found = solve_whole(problem, run, Budget(60), least=5.0, best=6.0)
    assert found is not None and found.bound == 6 and found.schedule is not None
    assert found.options == {"way": "there"}


@pytest.mark.parametrize(("problem", "micro_batches"), [
    (_two_ways(), 1000), (_two_ways(1 / 3), 2), (_two_ways(1e-15 / 3), 2)])
def test_too_many_operations_and_too_fine_numbers_are_left_alone(problem: WideProblem, micro_batches: int) -> None:
    run = Run.of(problem, micro_batches)
    assert solve_whole(problem, run, Budget(60)) is None
    assert is_small(problem, run) == (micro_batches < 1000)
