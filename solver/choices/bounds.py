"""What is proven of all assignments together: the arguments about one problem, made of the relaxed one."""

from __future__ import annotations

import math

from weft.solver.choices.loads import load_bound
from weft.solver.choices.relaxed import relaxed
from weft.solver.step.proven import Proven
from weft.solver.ticks import TickProblem
from weft.solver.wide.problem import WideProblem
from weft.solver.wide.rounds import Rounds
from weft.solver.wide.run import Run

__all__ = ["bound_of"]

#: Floats are added up and compared: what is claimed is that much less.
_ROUNDING = 1e-12


def bound_of(problem: WideProblem, run: Run, objective: str, known: float = 0.0) -> float:
    """A lower bound on what the best schedule of any assignment of ``problem`` comes to in the ``objective``, in the
    problem's time unit; no less than ``known``. Infinite where it is proven that no assignment has one."""
    bound = max(known, load_bound(problem, run, objective) * (1 - _ROUNDING))
    common = relaxed(problem)
    if common is None:
        return bound
    proven = Proven(TickProblem.of(Rounds(common, run).problem), run.rounds)
    proven.raise_by_all(objective)
    return max(bound, proven.of(objective) * (1 - _ROUNDING)) if math.isfinite(bound) else bound
