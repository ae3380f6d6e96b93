"""What every search for a placement knows and counts: the bound, the time, what each technique did."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Self

from weft.solver.cpsat.budget import Budget
from weft.solver.placement.groups import Groups, groups_of
from weft.solver.placement.params import PARAMS, PlacementParams
from weft.solver.placement.problem import PlacementProblem
from weft.solver.placement.technique import Technique

__all__ = ["Bracket", "Step", "TechniqueCount"]


@dataclass(frozen=True)
class Step:
    """Where a search stands: what it is doing, the best largest load so far and the bound."""

    doing: str
    objective: float
    bound: float
    seconds: float


@dataclass
class TechniqueCount:
    """How often a technique was called and how often it made the best placement better or raised the bound; seconds of
    wall time."""

    calls: int = 0
    better: int = 0
    seconds: float = 0.0


class Bracket(ABC):
    """``bound``: no placement has a smaller largest load; :attr:`objective`: one has this. ``whole``: the operators in
    groups before any further reduction; ``groups``: after those that keep an optimum."""

    whole: Groups
    groups: Groups
    bound: float

    def __init__(self, problem: PlacementProblem, budget: Budget, on_step: Callable[[Step], None],
                 params: PlacementParams = PARAMS) -> None:
        self.problem, self.budget, self.params = problem, budget, params
        self.counts: dict[str, TechniqueCount] = {}
        self.on_step = on_step
        self._began = time.process_time()
        self.whole = groups_of(problem)

    @property
    @abstractmethod
    def objective(self) -> float:
        """The largest load of the best placement so far; infinite where there is none."""

    def run(self, technique: Technique[Self], share: float) -> bool:
        """What ``technique`` says, counted."""
        count = self.counts.setdefault(technique.name, TechniqueCount())
        before, began = (self.objective, self.bound), self.budget.elapsed
        count.calls += 1
        try:
            return technique.improve(self, share)
        finally:
            count.seconds += self.budget.elapsed - began
            count.better += (self.objective, self.bound) != before

    def part(self, share: float) -> AbstractContextManager[Budget]:
        """A budget of ``share`` of what is left."""
        return self.budget.part(share)

    def raise_bound(self, bound: float) -> None:
        """No placement has a largest load below ``bound``."""
        self.bound = max(self.bound, bound)

    def say(self, doing: str) -> None:
        """Report where the search stands."""
        self.on_step(Step(doing, self.objective, self.bound, self.budget.elapsed))

    def spent(self) -> dict[str, Any]:
        """For a result's ``solver`` entry: time, seed, and what each technique did."""
        return {"seconds": round(self.budget.elapsed, 3), "cpu_seconds": round(time.process_time() - self._began, 3),
                "deterministic": round(self.budget.deterministic_used, 3), "seed": self.budget.seed,
                "workers": self.budget.workers,
                "techniques": {name: {"calls": count.calls, "better": count.better, "seconds": round(count.seconds, 3)}
                               for name, count in self.counts.items()}}
