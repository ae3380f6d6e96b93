"""Sequences as nodes of the tree: a bound on all that are left, and one child for each class of the next place."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
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
        """Those in which two micro-batches have changed places, one was moved to another place, or one is of another
        class; under other options, where one is another one, the same sequence."""
        if not isinstance(leaf, SequenceNode):
            return []
        sequence = leaf.partial.only
        if leaf.of is not self.of:
            near = len(self.options.items() - leaf.options.items()) == 1
            return [self.at(sequence)] if near and self.partial.allows(sequence) else []
        changes = [*_of_other_classes(leaf.partial)]
        if self.partial.allows(sequence):
            changes += _in_other_places(sequence)
        return [self.at(other) for other in changes if self.partial.allows(other)]

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
        return [node for root in self.roots for node in root.beside(leaf)]


def _in_other_places(sequence: ClassSequence) -> Iterator[ClassSequence]:
    """Two micro-batches in each other's place, one moved to another place."""
    for job, row in sequence.items():
        changed: dict[tuple[str | None, ...], None] = {}
        for i, j in combinations(range(len(row)), 2):
            if row[i] != row[j]:
                changed[(*row[:i], row[j], *row[i + 1:j], row[i], *row[j + 1:])] = None
                changed[(*row[:i], *row[i + 1:j + 1], row[i], *row[j + 1:])] = None
                changed[(*row[:i], row[j], *row[i:j], *row[j + 1:])] = None
        for other in changed:
            yield {**sequence, job: other}


def _of_other_classes(partial: Partial) -> Iterator[ClassSequence]:
    """One micro-batch of another class."""
    for job, row in partial.only.items():
        for i, own in enumerate(row):
            for name in partial.jobs[job].names:
                if name != own:
                    yield {**partial.only, job: (*row[:i], name, *row[i + 1:])}


def rounds_of(wide: WideProblem, sequence: ClassSequence) -> Rounds:
    """The plain problem of ``sequence``."""
    counted: dict[str | None, Counted] = {job: len(row) if row[0] is None else [str(name) for name in row]
                                          for job, row in sequence.items()}
    if set(counted) == {None}:
        return Rounds(wide, Run.of(wide, counted[None]))
    return Rounds(wide, Run.of(wide, {str(job): value for job, value in counted.items()}))
