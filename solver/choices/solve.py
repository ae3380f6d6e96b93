"""The best schedule of a problem with choices, jobs, or unequal micro-batches: the one entry point.

Jobs and classes make a plain problem of rounds (:mod:`weft.solver.problem.rounds`), choices a tree of them
(:mod:`weft.solver.choices.tree`); without choices the tree is one leaf, the plain search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Unpack

from weft.solver.choices.partial import Partial
from weft.solver.choices.report import result_of
from weft.solver.choices.tree import Tree
from weft.solver.cpsat.budget import Budget
from weft.solver.problem import Problem
from weft.solver.problem.rounds import Counted, Run
from weft.solver.schedule import Schedule
from weft.solver.step.search import Limits, Progress, budget_of


def solve_run(
    problem: Problem,
    micro_batches: Run | Counted | Mapping[str, Counted],
    *,
    ratio: Mapping[str, int] | None = None,
    objective: str = "makespan",
    on_progress: Callable[[Progress], None] = lambda _: None,
    **limits: Unpack[Limits],
) -> Schedule:
    """The best schedule found over all assignments of the ``problem``'s choices, with a lower bound proven over all.

    ``micro_batches`` is a run, or an argument of :meth:`~weft.solver.problem.rounds.Run.of` (a number, the class of
    each, or one of these for each job, in rounds of ``ratio``). ``objective``, ``on_progress`` and ``limits`` are those
    of :func:`weft.solver.step.search.solve`; a rate is the time per round.

    The schedule is that of a plain problem; its ``choices`` are the options taken, its ``rounds`` say what a
    micro-batch of it is (``None``: one of the problem's own). ``solver["options"]`` has for each option the bound on
    the best schedule with it (``bound``, ``None`` if it has none) and the best found with it (``makespan``, ``None`` if
    none was); both of the objective.

    Raises :class:`~weft.solver.feasibility.infeasible.Infeasible` if it is proven that no assignment fits the devices'
    memory, its subclass ``NoneFound`` if that is open and no schedule was found within the limit,
    :class:`~weft.solver.problem.ProblemError` for an invalid run, and ``ValueError`` for numbers out of range and an
    invalid objective.
    """
    budget = budget_of("solve_run", limits)
    run = micro_batches if isinstance(micro_batches, Run) else Run.of(problem, micro_batches, ratio)
    tree = tree_of(problem, run, budget, objective, on_progress)
    with budget.kept(lambda: tree.leader is not None):
        tree.run()
    return result_of(tree, problem)


def tree_of(problem: Problem, run: Run, budget: Budget, objective: str = "makespan",
            on_progress: Callable[[Progress], None] = lambda _: None) -> Tree:
    """The search of :func:`solve_run`, for a caller with a ``budget`` of its own."""
    return Tree(Partial(problem, run, objective), budget, objective, on_progress)
