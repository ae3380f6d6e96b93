"""The least cover of a graph by parts of several backends."""

from __future__ import annotations

import pytest

from tests.support.covers import least_cover, random_cover
from tests.support.examples import slow
from weft.solver.cpsat.budget import Budget
from weft.solver.placement.cover.problem import Cover, CoverPart, CoverProblem, Value
from weft.solver.placement.cover.search import alone, climb, find_cover, greedy, neighbours
from weft.solver.placement.problem import PlacementError


def single(operator: int, backend: str, seconds: float) -> CoverPart:
    return CoverPart(frozenset([operator]), backend, seconds)


@pytest.mark.parametrize(("first", "count"), [(0, 6), *(slow(seed, 18) for seed in range(6, 60, 18))])
def test_equals_what_trying_all_finds(first: int, count: int) -> None:
    for seed in range(first, first + count):
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
    crossed = (CoverPart(frozenset({0, 3}), "b", 1e-6), CoverPart(frozenset({1, 2}), "b", 1e-6))
    problem = CoverProblem(4, values, (*(single(i, "a", 1e-5) for i in range(4)), *crossed))
    found = find_cover(problem, Budget())
    assert found.seconds == pytest.approx(2.1e-5) and found.seconds < 1.001 * found.bound
    with pytest.raises(PlacementError, match=r"\[0, 3\], \[1, 2\] wait for each other"):
        problem.cover([4, 5])


def test_a_boundary_is_paid_once_for_each_backend_that_reads() -> None:
    problem = CoverProblem(3, (Value(0, (1, 2), {("a", "b"): 5e-6}),), (
        single(0, "a", 1e-6), single(1, "b", 1e-6), single(2, "b", 1e-6), single(2, "a", 3e-6)))
    assert problem.cover([0, 1, 2]).seconds == pytest.approx(8e-6)
    assert find_cover(problem, Budget()).chosen == (0, 1, 2)


@pytest.mark.parametrize("operators", [100, slow(250)])
def test_many_operators_with_boundaries_are_within_5_percent_in_20_deterministic_seconds(operators: int) -> None:
    found = find_cover(random_cover(operators, 1), Budget(deterministic=20.0))
    assert found.seconds < 1.05 * found.bound


def test_the_same_budget_gives_the_same_cover() -> None:
    problem = random_cover(40, 3)
    first, second = (find_cover(problem, Budget(deterministic=0.5, seed=2)) for _ in range(2))
    assert first.chosen == second.chosen


@pytest.mark.parametrize(("candidates", "message"), [
    ([single(0, "a", 1.0), single(1, "a", 1.0)], "no backend computes operator 2"),
    ([CoverPart(frozenset({0, 2}), "a", 1.0)], "not convex: operator 1 reads some of them"),
    ([single(0, "a", -1.0)], "takes -1.0 s"),
    ([CoverPart(frozenset(), "a", 1.0)], "needs at least one"),
    ([single(7, "a", 1.0)], "numbered below 3")])
def test_bad_candidates_are_refused(candidates: list[CoverPart], message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        CoverProblem(3, (Value(0, (1,)), Value(1, (2,))), tuple(candidates))


def test_an_operator_that_nothing_computes_alone_is_named() -> None:
    problem = CoverProblem(2, (Value(0, (1,)),), (single(0, "a", 1.0), CoverPart(frozenset({0, 1}), "b", 1.0)))
    with pytest.raises(PlacementError, match="no backend computes operator 1 by itself"):
        find_cover(problem, Budget())


def test_a_value_that_is_read_before_it_is_made_is_refused() -> None:
    with pytest.raises(PlacementError, match="readers must come later"):
        CoverProblem(2, (Value(1, (0,)),), (single(0, "a", 1.0), single(1, "a", 1.0)))


def test_neighbours_are_other_covers_without_what_is_left_out() -> None:
    found = find_cover(random_cover(12, 5), Budget(deterministic=5.0))
    others = list(neighbours(found, Budget(deterministic=20.0)))
    assert others and all(other.fault() is None for other in others)
    assert all(other.chosen != found.chosen and other.seconds >= found.bound - 1e-7 for other in others)


def test_a_clock_that_agrees_changes_nothing() -> None:
    found = find_cover(random_cover(12, 5), Budget(deterministic=5.0))
    assert climb(found, lambda cover: cover.seconds, Budget(deterministic=20.0), 6)[0].chosen == found.chosen


def test_a_backend_that_is_slower_than_measured_is_left() -> None:
    problem = random_cover(12, 5)
    found, calls = find_cover(problem, Budget(deterministic=5.0)), list[Cover]()

    def clock(cover: Cover) -> float:
        calls.append(cover)
        return cover.seconds + sum(1e-3 for part in cover.parts if part.backend == "b")

    best, seconds = climb(found, clock, Budget(deterministic=20.0), 8)
    assert any(part.backend == "b" for part in found.parts) and all(part.backend != "b" for part in best.parts)
    assert seconds == min(map(clock, [*calls])) and len(calls) <= 2 * 8
    assert seconds <= min(clock(alone(problem, backend)) for backend in problem.backends)
