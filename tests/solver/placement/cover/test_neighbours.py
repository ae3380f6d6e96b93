"""Covers near the best one, of which a clock says which is fastest."""

from __future__ import annotations

from tests.support.covers import random_cover
from weft.solver.cpsat.budget import Budget
from weft.solver.placement.cover.neighbours import climb, neighbours
from weft.solver.placement.cover.problem import Cover
from weft.solver.placement.cover.search import alone, find_cover


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
