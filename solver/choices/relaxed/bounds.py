"""What is proven of all assignments together: the arguments about one problem, made of the relaxed one."""

from __future__ import annotations

import math

from weft.solver.choices.relaxed.loads import load_bound
from weft.solver.choices.relaxed.problem import relaxed
from weft.solver.cpsat.budget import Budget
from weft.solver.feasibility.memory_order import find_room
from weft.solver.relations.min_dist import takes_before_giving
from weft.solver.step.proven import Proven
from weft.solver.ticks import TickProblem
from weft.solver.wide.problem import WideProblem
from weft.solver.wide.rounds import Rounds
from weft.solver.wide.run import Run

__all__ = ["bound_of"]

#: Deterministic seconds for the question whether one round fits the memory.
_ROOM = 0.05


def bound_of(problem: WideProblem, run: Run, objective: str, known: float = 0.0) -> float:
    """A lower bound on what the best schedule of any assignment of ``problem`` comes to in the ``objective``, in the
    problem's time unit; no less than ``known``. Infinite where it is proven that no assignment has one."""
    bound = max(known, load_bound(problem, run, objective))
    common = relaxed(problem)
    if common is None or math.isinf(bound):
        return bound
    instance = TickProblem.of(Rounds(common, run).problem)
    if _has_no_room(instance):
        return math.inf
    proven = Proven(instance, run.rounds)
    proven.raise_by_all(objective)
    return max(bound, proven.of(objective))


def _has_no_room(instance: TickProblem) -> bool:
    """Whether it is proven that not even one round fits. Leave out all rounds of a schedule but one: where each takes
    what it gives back before, no device holds more than it did."""
    if not any(instance.limited(device) for device in range(len(instance.capacity))):
        return False
    return takes_before_giving(instance) and find_room(instance, 1, Budget(), _ROOM).impossible
