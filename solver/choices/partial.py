"""A node of open choices: some options are taken, and the bound on the rest is valid for all assignments left.

It also picks the assignments for a first look: known schedules are made on them, so the answer is no worse than these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import combinations

from weft.solver.choices.node import ChoiceNode
from weft.solver.choices.relaxed.bounds import bound_of, load_bound
from weft.solver.problem import Options, Problem
from weft.solver.problem.rounds import Rounds, Run

#: The number of choices for which the rise of the bound is tested; of more, those whose options differ most in work.
_TRIED = 6

Key = tuple[tuple[str, str], ...]


class Partial:
    """``problem`` where ``options`` are taken, in ``run``; ``least`` is the bound proven for its parent.

    Nodes of one tree share the bounds ``seen`` so far, by options.
    """

    def __init__(self, problem: Problem, run: Run, objective: str, options: Options | None = None,
                 least: float = 0.0, seen: dict[Key, float] | None = None) -> None:
        self.whole = problem
        self.run = run
        self.objective = objective
        self.options: Options = dict(options or {})
        self.least = least
        self.seen: dict[Key, float] = {} if seen is None else seen

    @cached_property
    def problem(self) -> Problem:
        """The problem left."""
        return self.whole.under(self.options)

    @property
    def key(self) -> Key:
        return tuple(sorted(self.options.items()))

    @property
    def bound(self) -> float:
        if not self.whole.choices:
            return self.least  # its search has all the arguments
        if self.key not in self.seen:
            self.seen[self.key] = bound_of(self.problem, self.run, self.objective)
        return max(self.least, self.seen[self.key])

    def children(self) -> Sequence[Partial] | None:
        """One for each option of the choice that raises the least of their bounds most."""
        choices = list(self.problem.choices)
        if not choices:
            return None
        if len(choices) > _TRIED:
            choices = sorted(choices, key=self._spread)[-_TRIED:]
        return max((self._taking(choice) for choice in choices),
                   key=lambda nodes: (min(node.bound for node in nodes), sum(min(node.bound, 2 * self.bound + 1)
                                                                             for node in nodes) / len(nodes)))

    def rounds(self) -> Rounds:
        return Rounds(self.problem, self.run)

    def looks(self) -> Sequence[Partial]:
        """All if they are few, otherwise those that take the first option of every choice, the second ..."""
        return [self.at(options) for options in first_looks(self.problem)]

    def beside(self, leaf: ChoiceNode) -> Sequence[Partial]:
        """All that differ from it by one option, then those in which two choices with the same options swap theirs."""
        taken, choices = leaf.options, self.problem.choices
        changes = [{choice: option} for choice, options in choices.items() for option in options
                   if option != taken.get(choice)]
        changes += [{one: taken[other], other: taken[one]} for one, other in combinations(choices, 2)
                    if choices[one] == choices[other] and taken[one] != taken[other]]
        return [self.at({**taken, **change}) for change in changes]

    def at(self, options: Options) -> Partial:
        """The node of further ``options``."""
        return Partial(self.whole, self.run, self.objective, {**self.options, **options}, self.bound, self.seen)

    def any_leaf(self) -> Partial:
        """The node where the first option of every open choice is taken; no further bound is computed for it."""
        options = {choice: of[0] for choice, of in self.whole.choices.items()}
        leaf = Partial(self.whole, self.run, self.objective, {**options, **self.options}, self.least, self.seen)
        self.seen.setdefault(leaf.key, leaf.least)
        return leaf

    def _taking(self, choice: str) -> list[Partial]:
        return [self.at({choice: option}) for option in self.problem.choices[choice]]

    def _spread(self, choice: str) -> float:
        """The difference between the options of a choice in the least work of the busiest device."""
        loads = [load_bound(self.problem.under({choice: option}), self.run, self.objective)
                 for option in self.problem.choices[choice]]
        return max(loads) - min(loads) if loads else -math.inf


#: The most assignments of which all are tried: the known schedules of one take a tenth of a second or so.
MOST_LOOKS = 16


def first_looks(problem: Problem) -> Iterator[dict[str, str]]:
    """All assignments if they are few; otherwise those that take the first, the second ... option of every choice."""
    if problem.assignment_count <= MOST_LOOKS:
        yield from problem.assignments
        return
    for place in range(max(map(len, problem.choices.values()))):
        yield {choice: options[min(place, len(options) - 1)] for choice, options in problem.choices.items()}
