"""Sequences as nodes of the tree: a bound on all sequences left, and one child for each class of the next place.

The relaxed problem of sequences with open places: every schedule of every sequence left is one of it, and no longer.

A micro-batch in an open place gets a separate class:

* its durations and lags are the least over the classes that may stand there;
* its memory is the least, state by state. On each device its blocks with amounts are divided into chains, in which each
  block precedes the next one in every micro-batch. The level of a chain depends only on the number of its blocks that
  have run: after k of them, h_c(k) for class c, and while the k-th runs p_c(k), which is no less than the level before
  and after. The relaxed class has the least over c of h_c(k), and of p_c(k): its changes are differences of the former,
  its workspace is the excess of the latter over them, never below 0. So at any time each chain of each micro-batch has
  a level no higher than in reality, and so does every device, for every sequence.

Any division into chains is sound. Ours begins one at each block that takes, and ends each at the block that gives that
back: then every amount taken is given back, as far as it is for all classes.

The relaxed problem's own times are those of a real one whose operations all take the least, so by the argument of least
times (:mod:`weft.solver.timing`) a schedule's order is feasible in it, and ends no later. Bounds of plain problems are
therefore valid on it unchanged.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import combinations

from weft.solver.bounds.makespan import least_time
from weft.solver.choices.node import ChoiceNode
from weft.solver.choices.sequences.costs import Costs
from weft.solver.choices.sequences.partial import Sequence as ClassSequence
from weft.solver.choices.sequences.partial import Sequences
from weft.solver.late import nx
from weft.solver.problem import Block, Number, Options, Problem, per_class
from weft.solver.problem.rounds import Counted, Rounds, Run
from weft.solver.ticks import TickProblem
from weft.solver.values import exact, plain

#: The relaxed problem is used up to this number of operations.
_RELAXED = 64


class SequenceProblem:
    """``problem``, of which ``options`` make the choices, and the data that its sequences share."""

    def __init__(self, problem: Problem, options: Options) -> None:
        self.problem = problem
        self.options: Options = dict(options)
        self.costs = Costs(problem)
        self.relaxation = Relaxation(problem)


class SequenceNode:
    """The sequences that ``partial`` leaves open; ``least`` is the bound of its parent."""

    def __init__(self, of: SequenceProblem, partial: Sequences, least: float = 0.0) -> None:
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
        operations = sum(len(self.partial.jobs[block.job].fixed) for block in self.of.problem.blocks)
        if operations <= _RELAXED:
            rounds = self.of.relaxation.rounds(self.partial)
            bound = max(bound, least_time(TickProblem.of(rounds.problem), rounds.run.rounds))
        return bound

    def children(self) -> Sequence[SequenceNode] | None:
        if self.partial.is_one:
            return None
        return [SequenceNode(self.of, child, self.bound) for child in self.partial.children()]

    def rounds(self) -> Rounds:
        return rounds_of(self.of.problem, self.partial.only)

    def looks(self) -> Sequence[SequenceNode]:
        return []

    def beside(self, leaf: ChoiceNode) -> Sequence[SequenceNode]:
        """Those in which two micro-batches have changed places, one was moved to another place, or one is of another
        class; if another option is taken, the same sequence under it."""
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
        return SequenceNode(self.of, Sequences(jobs), self.least)


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

    def beside(self, leaf: ChoiceNode) -> Sequence[SequenceNode]:
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


def _of_other_classes(partial: Sequences) -> Iterator[ClassSequence]:
    """One micro-batch of another class."""
    for job, row in partial.only.items():
        for i, own in enumerate(row):
            for name in partial.jobs[job].names:
                if name != own:
                    yield {**partial.only, job: (*row[:i], name, *row[i + 1:])}


def rounds_of(problem: Problem, sequence: ClassSequence) -> Rounds:
    """The plain problem of ``sequence``."""
    counted: dict[str | None, Counted] = {job: len(row) if row[0] is None else [str(name) for name in row]
                                          for job, row in sequence.items()}
    if set(counted) == {None}:
        return Rounds(problem, Run.of(problem, counted[None]))
    return Rounds(problem, Run.of(problem, {str(job): value for job, value in counted.items()}))


#: Per class: the change by a chain after each of its blocks, and the most while it runs.
_Levels = list[list[tuple[Fraction, Fraction]]]


@dataclass(frozen=True)
class Relaxation:
    """Relaxed problems of ``problem``, which has no open choices."""

    problem: Problem

    def rounds(self, partial: Sequences) -> Rounds:
        """The relaxed problem of the sequences that ``partial`` leaves open, in one round: plain."""
        possible = {job: tuple(str(part.names[c]) for c in part.possible) for job, part in partial.jobs.items()}
        blocks = tuple(self._block(i, possible.get(block.job, ())) for i, block in enumerate(self.problem.blocks))
        classes = {job: tuple(self._open if c < 0 else part.names[c] for c in part.fixed)
                   if self.problem.classes_of(job) else (None,) * len(part.fixed)
                   for job, part in partial.jobs.items()}
        return Rounds(replace(self.problem, blocks=blocks, model=None), Run(classes, 1))

    @cached_property
    def _open(self) -> str:
        """The name of the class of open places: none of the problem's own."""
        name = "open"
        while name in self.problem.classes:
            name += "?"
        return name

    def _block(self, i: int, possible: tuple[str, ...]) -> Block:
        """Block ``i`` with its costs in open places, which may get any of ``possible``."""
        block = self.problem.blocks[i]
        names = self.problem.classes_of(block.job)
        if not names:
            return block
        if not possible:  # nothing is open: any will do
            possible = names[:1]
        plain = {name: block.of_class(name) for name in names}
        least, space = self._amounts(i, possible)
        waits = (replace(wait, **per_class(lag={**{name: plain[name].after[k].lag for name in names},
                                                self._open: min(plain[name].after[k].lag for name in possible)}))
                 for k, wait in enumerate(block.after))
        return replace(block, after=tuple(waits), **per_class(
            duration={**{name: plain[name].duration for name in names},
                      self._open: min(plain[name].duration for name in possible)},
            memory={**{name: plain[name].memory for name in names}, self._open: least},
            workspace={**{name: plain[name].workspace for name in names}, self._open: space}))

    def _amounts(self, i: int, possible: tuple[str, ...]) -> tuple[tuple[Number, ...], tuple[Number, ...]]:
        """The changes by block ``i``, and its workspace, on each of its devices in open places."""
        changes: list[Number] = []
        spaces: list[Number] = []
        for device in self.problem.blocks[i].devices:
            chain = next(chain for chain in self._chains[device] if i in chain)
            levels = _levels([[self._plain(k, name) for k in chain] for name in possible], device)
            k = chain.index(i)
            before = min((row[k - 1][0] for row in levels), default=Fraction(0)) if k else Fraction(0)
            after, peak = min(row[k][0] for row in levels), min(row[k][1] for row in levels)
            changes.append(plain(after - before))
            spaces.append(plain(peak - max(before, after)))
        return tuple(changes), tuple(spaces)

    def _plain(self, i: int, name: str) -> Block:
        return self.problem.blocks[i].of_class(name)

    @cached_property
    def _chains(self) -> Sequence[Sequence[Sequence[int]]]:
        """Per device, its blocks in chains."""
        graph: nx.DiGraph[int] = nx.DiGraph()
        number = {block.name: i for i, block in enumerate(self.problem.blocks)}
        graph.add_nodes_from(range(len(self.problem.blocks)))
        graph.add_edges_from((number[wait.block], i) for i, block in enumerate(self.problem.blocks)
                             for wait in block.after if wait.distance == 0)
        precedes = {i: nx.descendants(graph, i) for i in graph}
        order = list(nx.lexicographical_topological_sort(graph))
        return [self._divided(device, [i for i in order if device in self.problem.blocks[i].devices], precedes)
                for device in range(len(self.problem.devices))]

    def _divided(self, device: int, blocks: Sequence[int], precedes: Mapping[int, set[int]]) -> list[list[int]]:
        """``blocks``, in topological order, in chains: a giver goes to the chain that has exactly as much or more."""
        chains: list[list[int]] = []
        for i in blocks:
            names = self.problem.classes_of(self.problem.blocks[i].job) or (None,)
            best: tuple[Fraction, list[int]] | None = None
            gives = all(self.problem.blocks[i].of_class(name).memory_on(device) < 0 for name in names)
            for chain in chains if gives else []:
                if i not in precedes[chain[-1]]:
                    continue
                rest = [sum((exact(self.problem.blocks[k].of_class(name).memory_on(device))
                             for k in (*chain, i)), Fraction(0)) for name in names]
                if min(rest) >= 0 and (best is None or max(rest) < best[0]):
                    best = max(rest), chain
            if best is None:
                chains.append([i])
            else:
                best[1].append(i)
        return chains


def _levels(classes: Sequence[Sequence[Block]], device: int) -> _Levels:
    found: _Levels = []
    for blocks in classes:
        level = Fraction(0)
        row = []
        for block in blocks:
            change, space = (exact(amount) for amount in (block.memory_on(device), block.workspace_on(device)))
            peak = level + max(change, Fraction(0)) + space
            level += change
            row.append((level, peak))
        found.append(row)
    return found
