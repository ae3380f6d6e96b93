"""The exact cover of a graph by candidates, in CP-SAT.

``x[c]``: candidate c is chosen; of those that have an operator exactly one is. Where values cost something at a
boundary, ``q[u, a]`` says that operator u is computed by backend a: the sum of ``x`` of its candidates of that backend.
For each reader r of a value of u, ``f[a, b]`` says that a makes it and b computes r; its rows add up to ``q[u, a]``,
its columns to ``q[r, b]``. Of a value with several readers, ``w[a, b]`` is at least each reader's ``f[a, b]``, and only
it is paid. (The usual ``w >= q[u, a] + q[r, b] - 1`` means the same, but with every ``q`` at one half it says nothing,
and the relaxation then takes boundaries for free.) The linear relaxation of this is all but exact, so CP-SAT keeps the
whole of it: 250 operators are proven in about two seconds, where with its own choice of constraints 60 took fifteen.

Costs are whole nanoseconds, rounded down: what the model says none is below, none is below. That no part waits for
itself through others is not in the model: :meth:`CoverModel.forbid` cuts off each such cycle as it is found. So its
bound holds without them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from weft.solver.cpsat.budget import Budget
from weft.solver.cpsat.solve import Outcome, run
from weft.solver.late import cp_model
from weft.solver.placement.cover.problem import CoverProblem, Value

__all__ = ["TICK", "CoverModel"]

#: The unit of costs in the model, in seconds.
TICK = 1e-9


class CoverModel:
    """``problem`` as a model, in which further constraints can be put."""

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

    def forbid(self, together: Iterable[int]) -> None:
        """These candidates are not all chosen."""
        self.model.add_bool_or([self.chosen[i].negated() for i in together])

    def solve(self, budget: Budget, hint: Sequence[int], deterministic: float = math.inf) -> Outcome:
        """What CP-SAT says within ``budget``, and ``deterministic`` seconds of its own; ``hint`` is a cover."""
        self.model.clear_hints()  # type: ignore[no-untyped-call]
        known = set(hint)
        for i, variable in enumerate(self.chosen):
            self.model.add_hint(variable, i in known)
        return run(self.model, budget, deterministic=deterministic, presolve=True, relaxation="whole")

    def bound(self, outcome: Outcome) -> float:
        """Seconds that no cover takes less than, as ``outcome`` says."""
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
        """What boundaries of ``value`` cost."""
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
