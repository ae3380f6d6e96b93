"""The cheapest cover, with a bound: starts without a model, then the model, cycle by cycle.

The starts are each backend alone (its largest parts first, the operators that it does not compute by the cheapest other
ones) and the parts that gain most per operator; the answer is never worse than the best of them. Each solution of the
model with parts that wait for each other is split until none do, which is a cover, and the cycle is forbidden in the
model.

The exact cover of a graph by candidates, in CP-SAT.

``x[c]``: candidate c is chosen; of those that contain an operator exactly one is. If values cost something at a
boundary, ``q[u, a]`` says that operator u is computed by backend a: the sum of ``x`` of its candidates of that backend.
For each reader r of a value of u, ``f[a, b]`` says that a makes it and b computes r; its rows add up to ``q[u, a]``,
its columns to ``q[r, b]``. For a value with several readers, ``w[a, b]`` is at least each reader's ``f[a, b]``, and
only it counts as cost. (The usual ``w >= q[u, a] + q[r, b] - 1`` means the same, but with every ``q`` at one half it is
void, and the relaxation then gets boundaries for free.) The linear relaxation of this is nearly exact, so CP-SAT keeps
the whole of it: 250 operators are proven in about two seconds, where with its own choice of constraints 60 took
fifteen.

Costs are whole nanoseconds, rounded down: a lower bound of the model is one on the real costs. That no part waits for
itself through others is not in the model: :meth:`CoverModel.forbid` cuts off each such cycle as it is found. So its
bound is valid without them.

Other good covers near the best one are measured, and the measurement decides.

The times of parts were measured one by one; next to each other they may take more or less. So the best cover of the
model is measured as a whole, and also the best one of each backend alone, the best one without each backend, and the
best one without each of the parts that take most of its time. The neighbours of the fastest are measured next, until
none is faster or no try is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from weft.solver.cpsat.budget import Budget
from weft.solver.cpsat.solve import Outcome, run
from weft.solver.late import cp_model
from weft.solver.placement.cover.problem import Cover, CoverProblem, Value, cycles
from weft.solver.placement.problem import PlacementError


def find_cover(problem: CoverProblem, budget: Budget) -> Cover:
    """The cover that takes least, as far as ``budget`` lasts, and what none is below.

    Raises :class:`~weft.solver.placement.problem.PlacementError` where operators have no parts that go together.
    """
    best = min((*(alone(problem, backend) for backend in problem.backends), greedy(problem)),
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
            model.model.add_bool_or([model.chosen[chosen[part]].negated() for part in cycle])
        best = min(best, _untied(problem, chosen), key=lambda cover: cover.seconds)
        if not waiting:
            break
    return replace(best, bound=min(bound, best.seconds))


def alone(problem: CoverProblem, backend: str) -> Cover:
    """The cover by ``backend`` itself, its largest parts first; operators that it does not compute are in the cheapest
    parts of others."""
    rank = [(candidate.backend != backend, -len(candidate.operators) if candidate.backend == backend else
             candidate.seconds / len(candidate.operators), candidate.seconds, i)
            for i, candidate in enumerate(problem.candidates)]
    return _packed(problem, sorted(range(len(rank)), key=rank.__getitem__))


def greedy(problem: CoverProblem) -> Cover:
    """The parts that are cheapest an operator first."""
    return _packed(problem, sorted(range(len(problem.candidates)), key=lambda i: (
        problem.candidates[i].seconds / len(problem.candidates[i].operators), i)))


def _packed(problem: CoverProblem, order: Iterable[int]) -> Cover:
    """Candidates taken in ``order`` if all their operators are still free; parts that wait for each other are split."""
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
    """The cover of ``chosen``, with parts that wait for each other split into single operators: the largest of each
    cycle, repeatedly. That ends, as single operators do not wait for each other."""
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
    """For an operator its cheapest part without any other. Raises
    :class:`~weft.solver.placement.problem.PlacementError` if there is none."""
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


#: The unit of costs in the model, in seconds.
TICK = 1e-9


class CoverModel:
    """``problem`` as a model that accepts further constraints."""

    def __init__(self, problem: CoverProblem) -> None:
        self.problem = problem
        self.model = cp_model.CpModel()
        self.chosen = [self.model.new_bool_var(f"x{i}") for i in range(len(problem.candidates))]
        self.having: list[list[int]] = [[] for _ in range(problem.operators)]
        for i, candidate in enumerate(problem.candidates):
            for operator in candidate.operators:
                self.having[operator].append(i)
        for candidates in self.having:
            self.model.add_exactly_one([self.chosen[i] for i in candidates])
        self._computed: dict[int, dict[str, cp_model.IntVar]] = {}
        self.costs = [(variable, _ticks(candidate.seconds))
                      for variable, candidate in zip(self.chosen, problem.candidates, strict=True)]
        for value in problem.values:
            if any(_ticks(cost) > 0 for cost in value.boundary.values()):
                self._cross(value)
        self.model.minimize(sum(cost * variable for variable, cost in self.costs))

    def solve(self, budget: Budget, hint: Sequence[int], deterministic: float = math.inf) -> Outcome:
        """Solve with CP-SAT within ``budget``, and ``deterministic`` seconds of its own; ``hint`` is a cover."""
        self.model.clear_hints()  # type: ignore[no-untyped-call]
        known = set(hint)
        for i, variable in enumerate(self.chosen):
            self.model.add_hint(variable, i in known)
        return run(self.model, budget, deterministic=deterministic, presolve=True, relaxation="whole")

    def bound(self, outcome: Outcome) -> float:
        """The lower bound of ``outcome`` on all covers, in seconds."""
        found = outcome.solver.best_objective_bound
        return max(0.0, found * TICK) if math.isfinite(found) else 0.0

    def _computed_by(self, operator: int) -> dict[str, cp_model.IntVar]:
        """By backend, whether it computes ``operator``."""
        if operator not in self._computed:
            own = self._computed[operator] = dict[str, cp_model.IntVar]()
            for backend in sorted({self.problem.candidates[i].backend for i in self.having[operator]}):
                own[backend] = self.model.new_bool_var(f"q{operator}.{backend}")
                self.model.add(own[backend] == sum(
                    self.chosen[i] for i in self.having[operator] if self.problem.candidates[i].backend == backend))
        return self._computed[operator]

    def _cross(self, value: Value) -> None:
        """The cost of the boundaries of ``value``."""
        makers, flows = self._computed_by(value.maker), list[dict[tuple[str, str], cp_model.IntVar]]()
        for reader in value.readers:
            readers = self._computed_by(reader)
            flow = {(a, b): self.model.new_bool_var("") for a in makers for b in readers}
            for a, made in makers.items():
                self.model.add(made == sum(flow[a, b] for b in readers))
            for b, read in readers.items():
                self.model.add(read == sum(flow[a, b] for a in makers))
            flows.append(flow)
        for pair, cost in value.boundary.items():
            own = [flow[pair] for flow in flows if pair in flow]
            if _ticks(cost) <= 0 or pair[0] == pair[1] or not own:
                continue
            paid = own[0]
            if len(own) > 1:
                paid = self.model.new_bool_var("")
                for passing in own:
                    self.model.add_implication(passing, paid)
            self.costs.append((paid, _ticks(cost)))


def _ticks(seconds: float) -> int:
    return math.floor(seconds / TICK + 1e-6)


#: The share of the rest of a budget for the search of one neighbour.
_SHARE = 0.25
#: A cover must be this much faster than the best one to replace it: less is within the noise of measurements.
FASTER = 0.99


def climb(start: Cover, measured: Callable[[Cover], float], budget: Budget, tries: int) -> tuple[Cover, float]:
    """The cover with the least measurement, ``start`` or one reached from it, and that measurement. At most ``tries``
    covers are measured, backends alone first: the answer is never slower than the best of those."""
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
            if known[other.chosen] < FASTER * least:
                best, least, moved = replace(other, bound=start.bound), known[other.chosen], True
        lone = []
    return best, least


def neighbours(cover: Cover, budget: Budget) -> Iterator[Cover]:
    """The best covers without each of its backends, then without each of its parts, the slowest first."""
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
