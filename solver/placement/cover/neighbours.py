"""Other good covers near the best one, for a clock to have the last word.

What parts take was measured one by one; next to each other they may take more or less. So the cover that the model
calls best is measured as a whole, and beside it the best one of each backend alone, the best one without each backend,
and the best one without each of the parts that are most of its time. The fastest of them is next to have its neighbours
measured, until none is faster or no try is left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from weft.solver.cpsat.budget import Budget
from weft.solver.placement.cover.problem import Cover, CoverProblem
from weft.solver.placement.cover.search import alone, find_cover
from weft.solver.placement.problem import PlacementError

__all__ = ["climb", "neighbours"]

#: The share of what is left of a budget that the search of one neighbour gets.
_SHARE = 0.25
#: A cover must be this much faster than the best one to take its place: less is within what a clock repeats.
_FASTER = 0.99


def climb(start: Cover, measured: Callable[[Cover], float], budget: Budget, tries: int) -> tuple[Cover, float]:
    """The cover of which ``measured`` says least, ``start`` or one that it leads to, and what it says. At most
    ``tries`` covers are measured, backends alone first: the answer is never behind the best of those that were."""
    known: dict[tuple[int, ...], float] = {start.chosen: measured(start)}
    best, least = start, known[start.chosen]
    lone = [alone(start.problem, backend) for backend in start.problem.backends]
    moved = True
    while moved:
        moved = False
        for other in (*lone, *neighbours(best, budget)) if len(known) < tries else ():
            if other.chosen in known or len(known) >= tries:
                continue
            known[other.chosen] = measured(other)
            # Of two that are about as fast one backend alone is simpler; it must not win by noise either.
            if known[other.chosen] < _FASTER * least:
                best, least, moved = replace(other, bound=start.bound), known[other.chosen], True
        lone = []
    return best, least


def neighbours(cover: Cover, budget: Budget) -> Iterator[Cover]:
    """The best covers without each of its backends, then without each of its parts, those that take most first."""
    problem, used = cover.problem, {part.backend for part in cover.parts}
    for backend in sorted(used):
        yield from _without(problem, [i for i, candidate in enumerate(problem.candidates)
                                      if candidate.backend == backend], budget)
    for chosen in sorted(cover.chosen, key=lambda i: -problem.candidates[i].seconds):
        yield from _without(problem, [chosen], budget)


def _without(problem: CoverProblem, left_out: Collection[int], budget: Budget) -> Iterator[Cover]:
    """The best cover without some candidates, if the others make one and there is time."""
    kept = [i for i in range(len(problem.candidates)) if i not in set(left_out)]
    if budget.spent:
        return
    try:
        with budget.part(_SHARE) as part:
            found = find_cover(replace(problem, candidates=tuple(problem.candidates[i] for i in kept)), part)
    except PlacementError:
        return
    yield problem.cover(kept[i] for i in found.chosen)
