"""A node of open choices: some options are taken, and the bounds on the rest of the problem hold for all that is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from weft.solver.choices.bounds import bound_of
from weft.solver.choices.node import Node
from weft.solver.wide.block import Options
from weft.solver.wide.problem import WideProblem
from weft.solver.wide.rounds import Rounds
from weft.solver.wide.run import Run

__all__ = ["Partial"]


class Partial:
    """``problem`` where ``options`` are taken, in ``run``; ``least`` is what its parent has proven."""

    def __init__(self, problem: WideProblem, run: Run, objective: str, options: Options | None = None,
                 least: float = 0.0) -> None:
        self.whole = problem
        self.run = run
        self.objective = objective
        self.options: Options = dict(options or {})
        self.least = least

    @cached_property
    def problem(self) -> WideProblem:
        """What is left."""
        return self.whole.under(self.options)

    @property
    def key(self) -> tuple[tuple[str, str], ...]:
        return tuple(sorted(self.options.items()))

    @cached_property
    def bound(self) -> float:
        return bound_of(self.problem, self.run, self.objective, self.least)

    def children(self) -> Sequence[Partial] | None:
        """One for each option of the choice that raises the bound most."""
        rivals = [self._taking(choice) for choice in self.problem.choices]
        return max(rivals, key=lambda nodes: sorted(node.bound for node in nodes), default=None)

    def rounds(self) -> Rounds:
        return Rounds(self.problem, self.run)

    def beside(self, leaf: Node) -> Sequence[Partial]:
        """All that differ from it by one option, those with the least bounds first."""
        found = [self.at({**leaf.options, choice: option}) for choice, options in self.problem.choices.items()
                 for option in options if leaf.options.get(choice) != option]
        return sorted(found, key=lambda node: node.bound)

    def at(self, options: Options) -> Partial:
        """The node of further ``options``."""
        return Partial(self.whole, self.run, self.objective, {**self.options, **options}, self.least)

    def _taking(self, choice: str) -> list[Partial]:
        return [Partial(self.whole, self.run, self.objective, {**self.options, choice: option}, self.bound)
                for option in self.problem.choices[choice]]
