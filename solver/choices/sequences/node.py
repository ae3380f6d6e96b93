"""Sequences as nodes of the tree: a bound on all that are left, and one child for each class of the next place."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from itertools import combinations

from weft.solver.bounds.makespan import least_time
from weft.solver.choices.node import Node
from weft.solver.choices.sequences.costs import Costs
from weft.solver.choices.sequences.partial import Partial
from weft.solver.choices.sequences.partial import Sequence as ClassSequence
from weft.solver.choices.sequences.relaxed import Relaxation
from weft.solver.ticks import TickProblem
from weft.solver.wide.block import Options
from weft.solver.wide.problem import WideProblem
from weft.solver.wide.rounds import Rounds
from weft.solver.wide.run import Counted, Run

__all__ = ["Roots", "SequenceNode", "SequenceProblem", "rounds_of"]

#: The relaxed problem is looked at where it has no more operations.
_RELAXED = 64
#: Sequences of more micro-batches have too many neighbours to try each.
_NEIGHBOURS = 6


class SequenceProblem:
    """``wide``, a problem whose choices are made as ``options`` say, and what its sequences share."""

    def __init__(self, wide: WideProblem, options: Options) -> None:
        self.wide = wide
        self.options: Options = dict(options)
        self.costs = Costs(wide)
        self.relaxation = Relaxation(wide)


class SequenceNode:
    """The sequences that ``partial`` leaves open; ``least`` is what its parent has proven."""

    def __init__(self, of: SequenceProblem, partial: Partial, least: float = 0.0) -> None:
        self.of = of
        self.partial = partial
        self.least = least

    @property
    def options(self) -> Options:
        return self.of.options

    @cached_property
    def key(self) -> Hashable:
        options = tuple(sorted(self.of.options.items()))
        if self.partial.is_one:
            return (options, *self.partial.only.values())
        return options, tuple((part.fixed, part.left) for part in self.partial.jobs.values())

    @cached_property
    def bound(self) -> float:
        bound = max(self.least, self.of.costs.bound(self.partial))
        operations = sum(len(self.partial.jobs[block.job].fixed) for block in self.of.wide.blocks)
        if operations <= _RELAXED:
            rounds = self.of.relaxation.rounds(self.partial)
            bound = max(bound, least_time(TickProblem.of(rounds.problem), rounds.run.rounds))
        return bound

    def children(self) -> Sequence[SequenceNode] | None:
        if self.partial.is_one:
            return None
        return [SequenceNode(self.of, child, self.bound) for child in self.partial.children()]

    def rounds(self) -> Rounds:
        return rounds_of(self.of.wide, self.partial.only)

    def looks(self) -> Sequence[SequenceNode]:
        return []

    def beside(self, leaf: Node) -> Sequence[SequenceNode]:
        """Those in which two micro-batches have changed places, where they are few."""
        if not isinstance(leaf, SequenceNode) or leaf.of is not self.of:
            return []
        found = {}
        for job, row in leaf.partial.only.items():
            for i, j in combinations(range(len(row)), 2) if len(row) <= _NEIGHBOURS else ():
                if row[i] != row[j]:
                    other = self.at({**leaf.partial.only, job: swapped(row, i, j)})
                    found[other.key] = other
        return sorted(found.values(), key=lambda node: node.bound)

    def at(self, sequence: ClassSequence) -> SequenceNode:
        """The leaf of ``sequence``."""
        jobs = {job: part.holding(sequence[job]) for job, part in self.partial.jobs.items()}
        return SequenceNode(self.of, Partial(jobs), self.least)


class Roots:
    """Several roots as one: sequences of other counts, or of other assignments."""

    def __init__(self, roots: Sequence[SequenceNode]) -> None:
        self.roots = roots
        self.options: Options = {}
        self.key: Hashable = "roots"

    @cached_property
    def bound(self) -> float:
        return min(root.bound for root in self.roots)

    def children(self) -> Sequence[SequenceNode]:
        return self.roots

    def rounds(self) -> Rounds:
        raise TypeError("several roots are no leaf")

    def looks(self) -> Sequence[SequenceNode]:
        return []

    def beside(self, leaf: Node) -> Sequence[SequenceNode]:
        return next((found for root in self.roots if (found := root.beside(leaf))), [])


def swapped(row: tuple[str | None, ...], i: int, j: int) -> tuple[str | None, ...]:
    """``row`` with two places changed, i < j."""
    return (*row[:i], row[j], *row[i + 1:j], row[i], *row[j + 1:])


def rounds_of(wide: WideProblem, sequence: ClassSequence) -> Rounds:
    """The plain problem of ``sequence``."""
    counted: dict[str | None, Counted] = {job: len(row) if row[0] is None else [str(name) for name in row]
                                          for job, row in sequence.items()}
    if set(counted) == {None}:
        return Rounds(wide, Run.of(wide, counted[None]))
    return Rounds(wide, Run.of(wide, {str(job): value for job, value in counted.items()}))
