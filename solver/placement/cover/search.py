"""The cover that takes least, with a bound: what is known without a model, then the model, cycle by cycle.

The starts are each backend alone (its largest parts first, what it does not compute by the cheapest other ones) and
the parts that gain most an operator; the answer is never worse than the best of them. Each solution of the model in
which parts wait for each other is taken apart until none do, which is a cover, and the cycle is forbidden in the model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from weft.solver.cpsat.budget import Budget
from weft.solver.placement.cover.cycles import cycles
from weft.solver.placement.cover.model import TICK, CoverModel
from weft.solver.placement.cover.problem import Cover, CoverProblem

__all__ = ["alone", "find_cover", "greedy"]


def find_cover(problem: CoverProblem, budget: Budget, starts: Iterable[Cover] = ()) -> Cover:
    """The cover that takes least, as far as ``budget`` lasts, and what none is below.

    ``starts``: covers that are known. Raises :class:`~weft.solver.placement.problem.PlacementError` where operators
    have no parts that go together.
    """
    best = min((*starts, *(alone(problem, backend) for backend in problem.backends), greedy(problem)),
               key=lambda cover: cover.seconds)
    bound, model = best.bound, CoverModel(problem)
    while not budget.spent and best.seconds - bound > TICK * (problem.operators + len(problem.values)):
        outcome = model.solve(budget, best.chosen)
        bound = max(bound, model.bound(outcome))
        if not outcome.found:
            break
        chosen = [i for i, variable in enumerate(model.chosen) if outcome.solver.boolean_value(variable)]
        found = Cover(problem, tuple(chosen))
        waiting = cycles(problem.after, found.part_of, len(chosen))
        for cycle in waiting:
            model.forbid(chosen[part] for part in cycle)
        best = min(best, _untied(problem, chosen), key=lambda cover: cover.seconds)
        if not waiting:
            break
    return replace(best, bound=min(bound, best.seconds))


def alone(problem: CoverProblem, backend: str) -> Cover:
    """What ``backend`` makes of the graph by itself, its largest parts first; operators that it does not compute are in
    the cheapest parts of others."""
    rank = [(candidate.backend != backend, -len(candidate.operators) if candidate.backend == backend else
             candidate.seconds / len(candidate.operators), candidate.seconds, i)
            for i, candidate in enumerate(problem.candidates)]
    return _packed(problem, sorted(range(len(rank)), key=rank.__getitem__))


def greedy(problem: CoverProblem) -> Cover:
    """The parts that are cheapest an operator first."""
    return _packed(problem, sorted(range(len(problem.candidates)), key=lambda i: (
        problem.candidates[i].seconds / len(problem.candidates[i].operators), i)))


def _packed(problem: CoverProblem, order: Iterable[int]) -> Cover:
    """Candidates taken in ``order`` wherever all their operators are free still; where parts wait for each other, they
    are taken apart."""
    ranks = list(order)
    free, chosen = set(range(problem.operators)), list[int]()
    for i in ranks:
        if problem.candidates[i].operators <= free:
            free -= problem.candidates[i].operators
            chosen.append(i)
    return _untied(problem, _filled(problem, chosen, free))


def _filled(problem: CoverProblem, chosen: list[int], free: Collection[int]) -> list[int]:
    """``chosen`` and, for the operators that are ``free``, the cheapest parts of one operator each."""
    singles = _singles(problem)
    return [*chosen, *(singles(operator) for operator in sorted(free))]


def _untied(problem: CoverProblem, chosen: list[int]) -> Cover:
    """The cover of ``chosen``, whose parts that wait for each other are made of single operators: the largest of each
    cycle, again and again. That ends, for single operators do not."""
    singles = _singles(problem)
    while True:
        found = Cover(problem, tuple(sorted(chosen)))
        waiting = cycles(problem.after, found.part_of, len(chosen))
        if not waiting:
            return problem.cover(chosen)
        chosen = list(found.chosen)
        for cycle in waiting:
            largest = found.chosen[max(cycle, key=lambda part: len(found.parts[part].operators))]
            chosen.remove(largest)
            chosen += [singles(operator) for operator in sorted(problem.candidates[largest].operators)]


def _singles(problem: CoverProblem) -> Callable[[int], int]:
    """Of an operator its cheapest part that has no other. Raises
    :class:`~weft.solver.placement.problem.PlacementError` where there is none."""
    from weft.solver.placement.problem import PlacementError

    best: dict[int, int] = {}
    for i, candidate in enumerate(problem.candidates):
        if len(candidate.operators) == 1:
            operator, = candidate.operators
            if operator not in best or candidate.seconds < problem.candidates[best[operator]].seconds:
                best[operator] = i

    def single(operator: int) -> int:
        if operator not in best:
            raise PlacementError(f"no backend computes operator {operator} by itself: a cover cannot be completed")
        return best[operator]

    return single
