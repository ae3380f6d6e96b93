"""The least cover of a graph by parts of several backends."""

from __future__ import annotations

import pytest

from tests.support.covers import least_cover, random_cover
from weft.solver.cpsat.budget import Budget
from weft.solver.placement.cover.problem import Candidate, CoverProblem, Value
from weft.solver.placement.cover.search import alone, find_cover, greedy
from weft.solver.placement.problem import PlacementError


def single(operator: int, backend: str, seconds: float) -> Candidate:
    return Candidate(frozenset([operator]), backend, seconds)


@pytest.mark.parametrize("first", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 200, 20))])
def test_equals_what_trying_all_finds(first: int) -> None:
    for seed in range(first, first + 20):
        problem = random_cover(4 + seed % 6, seed, boundaries=seed % 4 > 0)
        found = find_cover(problem, Budget(deterministic=10.0))
        assert found.fault() is None
        assert found.seconds == pytest.approx(least_cover(problem), abs=1e-12)
        assert found.bound == pytest.approx(found.seconds, abs=1e-7)


def test_is_never_worse_than_a_start_and_the_bound_never_above() -> None:
    for seed in range(10):
        problem = random_cover(30, seed)
        starts = [greedy(problem), *(alone(problem, backend) for backend in problem.backends)]
        for deterministic in (0.0, 5.0):
            found = find_cover(problem, Budget(deterministic=deterministic))
            assert found.seconds <= min(start.seconds for start in starts) + 1e-12
            assert found.bound <= found.seconds + 1e-12


def test_parts_that_wait_for_each_other_are_no_cover() -> None:
    # 0 -> 2 and 1 -> 3: the parts {0, 3} and {1, 2} are cheap, and each waits for the other.
    values = (Value(0, (2,)), Value(1, (3,)))
    crossed = (Candidate(frozenset({0, 3}), "b", 1e-6), Candidate(frozenset({1, 2}), "b", 1e-6))
    problem = CoverProblem(4, values, (*(single(i, "a", 1e-5) for i in range(4)), *crossed))
    found = find_cover(problem, Budget())
    assert found.seconds == pytest.approx(2.1e-5) and found.gap < 1e-3
    with pytest.raises(PlacementError, match=r"\[0, 3\], \[1, 2\] wait for each other"):
        problem.cover([4, 5])


def test_a_boundary_is_paid_once_for_each_backend_that_reads() -> None:
    problem = CoverProblem(3, (Value(0, (1, 2), {("a", "b"): 5e-6}),), (
        single(0, "a", 1e-6), single(1, "b", 1e-6), single(2, "b", 1e-6), single(2, "a", 3e-6)))
    assert problem.cover([0, 1, 2]).seconds == pytest.approx(8e-6)
    assert find_cover(problem, Budget()).chosen == (0, 1, 2)


def test_250_operators_with_boundaries_are_within_5_percent_in_20_deterministic_seconds() -> None:
    found = find_cover(random_cover(250, 1), Budget(deterministic=20.0))
    assert found.gap < 0.05


def test_the_same_budget_gives_the_same_cover() -> None:
    problem = random_cover(40, 3)
    first, second = (find_cover(problem, Budget(deterministic=0.5, seed=2)) for _ in range(2))
    assert first.chosen == second.chosen


@pytest.mark.parametrize(("candidates", "message"), [
    ([single(0, "a", 1.0), single(1, "a", 1.0)], "no backend computes operator 2"),
    ([Candidate(frozenset({0, 2}), "a", 1.0)], "not convex: operator 1 reads some of them"),
    ([single(0, "a", -1.0)], "takes -1.0 s"),
    ([Candidate(frozenset(), "a", 1.0)], "needs at least one"),
    ([single(7, "a", 1.0)], "numbered below 3")])
def test_bad_candidates_are_refused(candidates: list[Candidate], message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        CoverProblem(3, (Value(0, (1,)), Value(1, (2,))), tuple(candidates))


def test_an_operator_that_nothing_computes_alone_is_named() -> None:
    problem = CoverProblem(2, (Value(0, (1,)),), (single(0, "a", 1.0), Candidate(frozenset({0, 1}), "b", 1.0)))
    with pytest.raises(PlacementError, match="no backend computes operator 1 by itself"):
        find_cover(problem, Budget())


def test_a_value_that_is_read_before_it_is_made_is_refused() -> None:
    with pytest.raises(PlacementError, match="readers must come later"):
        CoverProblem(2, (Value(1, (0,)),), (single(0, "a", 1.0), single(1, "a", 1.0)))
