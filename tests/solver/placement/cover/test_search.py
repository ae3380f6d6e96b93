"""The least cover of a graph by parts of several backends."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.support.examples import slow
from weft.solver.cpsat.budget import Budget
from weft.solver.placement.cover.problem import Cover, CoverPart, CoverProblem, Value, between
from weft.solver.placement.cover.search import alone, climb, find_cover, greedy, neighbours
from weft.solver.placement.problem import PlacementError

BACKENDS = ("a", "b", "c")
MICRO = 1e-6


def random_cover(operators: int, seed: int, *, boundaries: bool = True, backends: int = 3) -> CoverProblem:
    """A graph whose operators read one or two of those just before; backend ``a`` computes each by itself, the others
    some; all have overlapping parts of up to four. Costs are whole microseconds."""
    rng, names = random.Random(seed), BACKENDS[:backends]
    before = [sorted({rng.randrange(max(0, i - 3), i), *(
        [rng.randrange(max(0, i - 6), i)] if rng.random() < 0.4 else [])}) if i else [] for i in range(operators)]
    after = [[j for j in range(operators) if i in before[j]] for i in range(operators)]
    values = tuple(Value(i, tuple(after[i]), {(x, y): rng.randint(1, 6) * MICRO for x in names for y in names if x != y}
                         if boundaries else {}) for i in range(operators) if after[i])
    base = [rng.randint(5, 30) for _ in range(operators)]
    singles = [CoverPart(frozenset([i]), "a", (base[i] + 2) * MICRO) for i in range(operators)]
    singles += [CoverPart(frozenset([i]), name, (int(base[i] * rng.uniform(0.6, 1.5)) + 2) * MICRO)
                for name in names[1:] for i in range(operators) if rng.random() < 0.7]
    alone = CoverProblem(operators, values, tuple(singles))
    parts = {(name, part) for name in names for i in range(operators) for size in (2, 3, 4) if rng.random() < 0.5
             for part in [_grown(i, size, before, after, rng)] if len(part) > 1 and between(alone.after, part) is None}
    return CoverProblem(operators, values, (*alone.candidates, *(
        CoverPart(part, name, (int(sum(base[i] for i in part) * rng.uniform(0.5, 1.1)) + 2) * MICRO)
        for name, part in sorted(parts, key=lambda found: (found[0], sorted(found[1]))))))


def _grown(start: int, size: int, before: list[list[int]], after: list[list[int]],
           rng: random.Random) -> frozenset[int]:
    part = {start}
    while len(part) < size:
        near = sorted({other for i in part for other in (*before[i], *after[i])} - part)
        if not near:
            break
        part.add(rng.choice(near))
    return frozenset(part)


def least_cover(problem: CoverProblem) -> float:
    """Seconds of the least cover, by trying all."""
    return min(_cost(problem, chosen) for chosen in _covers(problem, 0, [-1] * problem.operators, [])
               if _runs(problem, chosen))


def _covers(problem: CoverProblem, start: int, taken: list[int], chosen: list[int]) -> Iterator[list[int]]:
    while start < problem.operators and taken[start] >= 0:
        start += 1
    if start == problem.operators:
        yield list(chosen)
        return
    for i, candidate in enumerate(problem.candidates):
        if start in candidate.operators and all(taken[j] < 0 for j in candidate.operators):
            for j in candidate.operators:
                taken[j] = i
            yield from _covers(problem, start, taken, [*chosen, i])
            for j in candidate.operators:
                taken[j] = -1


def _runs(problem: CoverProblem, chosen: list[int]) -> bool:
    """Whether the parts can run one after another: those that wait for nothing that is left do."""
    done: set[int] = set()
    left = [problem.candidates[i].operators for i in chosen]
    while left:
        ready = [part for part in left if all(
            value.maker in done or value.maker in part for value in problem.values if part & {*value.readers})]
        if not ready:
            return False
        left = [part for part in left if part not in ready]
        done.update(*ready)
    return True


def _cost(problem: CoverProblem, chosen: list[int]) -> float:
    backend = {j: problem.candidates[i].backend for i in chosen for j in problem.candidates[i].operators}
    total = sum(problem.candidates[i].seconds for i in chosen)
    for value in problem.values:
        paid = set()
        for reader in value.readers:
            pair = backend[value.maker], backend[reader]
            if pair[0] != pair[1] and pair not in paid:
                paid.add(pair)
                total += value.boundary.get(pair, 0.0)
    return total


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
