"""Random graphs with candidates of several backends, and the least cover by trying all."""

from __future__ import annotations

import random
from collections.abc import Iterator

from weft.solver.placement.cover.problem import CoverPart, CoverProblem, Value, between

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
