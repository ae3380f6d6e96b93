"""Lower bounds on the makespan of all sequences that a partial one leaves open, at the cost of longest paths.

*Heads.* An operation in an open place lasts at least as long as the least of the classes left; several copies of one
block in k open places take at least the k shortest of those left, together. The head of an operation is the largest of
the head, length and lag of each that it waits for; and, for each of its devices, of the time at which that can have run
all that must precede it there: earlier copies of its own, and of the blocks that lead to it. From the least head e of
some of them on they take up their work. Tails are the heads of the schedule run backwards.

*Devices.* The work of a device is known exactly if as many of each class are left as there are open places, in any
order (if more are left, at least the shortest). Let S be its operations with heads of h or more and tails of t or more.
They run between h and the makespan less t, one at a time, so the makespan is no less than h + t + the work of S; and
that is the total work of the device, less the most that the others can take.

*Memory.* The joint need of all micro-batches: :mod:`weft.solver.choices.sequences.memory`.

Times are whole numbers of a unit; if sums of them have more digits than floats, the bound is lowered a little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from weft.solver.choices.sequences.memory import MemoryNeeds
from weft.solver.choices.sequences.partial import JobPart, Sequences
from weft.solver.control.clock import checkpoint
from weft.solver.late import nx
from weft.solver.problem import Problem
from weft.solver.ticks import in_whole_numbers

#: Sums of whole numbers up to this are exact in floats; above, the bound is lowered by that share.
_EXACT, _ROUNDING = 2.0**53, 1e-10
#: Heads and tails of a device's earliest and latest operations that are tried.
_TRIED = 8
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _JobCosts:
    """One job's blocks in topological order: ``durations[b, c]``; the waits of each, as (block, lags by class,
    distance); its predecessors, and its successors, on each of its devices, as (block, distance)."""

    blocks: tuple[int, ...]
    durations: Floats
    into: Sequence[Sequence[tuple[int, Floats, int]]]
    before: Sequence[Sequence[Sequence[tuple[int, int]]]]
    after: Sequence[Sequence[Sequence[tuple[int, int]]]]


class Costs:
    """The costs of the blocks of ``problem``, which has no open choices, in each class; and bounds that follow from
    them."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        values = [amount for block in problem.blocks for name in self._names(block.job)
                  for plain in [block.of_class(name)] for amount in (plain.duration, *(w.lag for w in plain.after))]
        whole, self.unit = in_whole_numbers(values)
        self._whole = dict(zip(map(str, values), map(float, whole), strict=True))
        self._sum = float(sum(map(abs, whole)))
        self._job = {job: self._of_job(job) for job in problem.jobs or (None,)}
        self._memory = MemoryNeeds(problem)

    def _names(self, job: str | None) -> tuple[str | None, ...]:
        return self.problem.classes_of(job) or (None,)

    def _of_job(self, job: str | None) -> _JobCosts:
        numbers = [i for i, block in enumerate(self.problem.blocks) if block.job == job]
        index = {self.problem.blocks[i].name: i for i in numbers}
        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_nodes_from(numbers)
        graph.add_edges_from((index[wait.block], i) for i in numbers for wait in self.problem.blocks[i].after
                             if wait.distance == 0)
        order = tuple(nx.lexicographical_topological_sort(graph))
        place = {i: k for k, i in enumerate(order)}
        names = self._names(job)
        plain = {i: [self.problem.blocks[i].of_class(name) for name in names] for i in order}
        durations = np.array([[self._whole[str(block.duration)] for block in plain[i]] for i in order])
        into = [[(place[index[wait.block]], np.array([self._whole[str(block.after[k].lag)] for block in plain[i]]),
                  wait.distance) for k, wait in enumerate(self.problem.blocks[i].after)] for i in order]
        precede = {i: nx.ancestors(graph, i) for i in order}
        follow = {i: nx.descendants(graph, i) for i in order}

        def known(i: int, others: set[int]) -> list[list[tuple[int, int]]]:
            """Itself one micro-batch earlier, and ``others`` of its own."""
            return [[(place[i], 1), *((place[j], 0) for j in others if device in self.problem.blocks[j].devices)]
                    for device in self.problem.blocks[i].devices]

        return _JobCosts(order, durations, into, [known(i, precede[i]) for i in order],
                         [known(i, follow[i]) for i in order])

    def work(self, job: str | None, name: str | None) -> float:
        """The work of a micro-batch of class ``name`` of ``job`` on all devices, in the problem's time unit."""
        return float(sum(block.of_class(name).duration * len(block.devices)
                         for block in self.problem.blocks if block.job == job))

    def bound(self, partial: Sequences) -> float:
        """A lower bound on the makespan of every sequence that ``partial`` leaves open, in the problem's time unit;
        infinite if none of them has a schedule."""
        checkpoint()
        if self._memory.excludes(partial):
            return math.inf
        jobs = [_Laid(self._job[job], part, [self._names(job).index(name) for name in part.names])
                for job, part in partial.jobs.items()]
        best = max(laid.longest for laid in jobs)
        for device in range(len(self.problem.devices)):
            rows = [entry for laid in jobs for entry in laid.on(self.problem, device)]
            best = max(best, _device_bound(rows))
            held = self._memory.on(device, partial)
            if held:
                least = min(float(row.head.min()) for row in rows) + min(float(row.tail.min()) for row in rows)
                best = max(best, least + float(held / self.unit) * (1 - 1e-12))
        exact = self._sum * max(len(part.fixed) for part in partial.jobs.values()) < _EXACT
        return float(Fraction(best) * self.unit * (1 if exact else Fraction(1 - _ROUNDING)))


class _Laid:
    """One job's operations in their places: the least that each lasts, its head and its tail."""

    def __init__(self, costs: _JobCosts, part: JobPart, classes: Sequence[int]) -> None:
        self.costs = costs
        own = costs.durations[:, classes]  # by the part's own classes
        fixed = np.array(part.fixed)
        self.is_open = fixed < 0
        possible = list(part.possible) or [0]
        self.least = np.where(self.is_open, own[:, possible].min(axis=1)[:, None], own[:, fixed])
        self.fixed = np.where(self.is_open, 0.0, own[:, fixed])
        ranked = np.sort(np.repeat(own, part.left, axis=1) if part.open else own[:, :0], axis=1)
        zero = np.zeros((len(own), 1))
        # The k shortest, and the k longest, of the rest, together.
        self.shortest = np.hstack([zero, ranked.cumsum(axis=1)])[:, :part.open + 1]
        self.longest_of = np.hstack([zero, ranked[:, ::-1].cumsum(axis=1)])[:, :part.open + 1]
        lags = [[(block, np.where(self.is_open, lag[classes][possible].min(), lag[classes][fixed]), distance)
                 for block, lag, distance in waits] for waits in costs.into]
        forwards: list[list[tuple[int, Floats, int]]] = [[] for _ in lags]
        backwards: list[list[tuple[int, Floats, int]]] = [[] for _ in lags]
        for b, waits in enumerate(lags):
            for a, lag, distance in waits:
                forwards[b].append((a, np.roll(lag, distance), distance))
                backwards[a].append((b, lag[::-1], distance))
        blocks = range(len(own))
        self.head = self._heads(blocks, self.least, self.fixed, self.is_open, forwards, costs.before)
        self.tail = self._heads(blocks[::-1], self.least[:, ::-1], self.fixed[:, ::-1], self.is_open[::-1], backwards,
                                costs.after)[:, ::-1]

    def _heads(self, order: Sequence[int], least: Floats, fixed: Floats, is_open: npt.NDArray[np.bool_],
               waits: Sequence[Sequence[tuple[int, Floats, int]]],
               before: Sequence[Sequence[Sequence[tuple[int, int]]]]) -> Floats:
        """Heads, blocks in topological ``order``; ``waits`` are (block, lag by own place, distance), ``before`` what
        must precede a block on each of its devices, as (block, distance). With all mirrored: tails."""
        head = np.zeros(least.shape)
        sums = np.hstack([np.zeros((len(fixed), 1)), fixed.cumsum(axis=1)])
        count = np.concatenate([[0], is_open.cumsum()])

        def work(b: int, first: npt.NDArray[np.int64], last: int) -> Floats:
            """The least that the copies of ``b`` from places ``first`` to ``last`` take, the latter not included."""
            taken: Floats = sums[b, last] - sums[b, first] + self.shortest[b][count[last] - count[first]]
            return taken

        for p in range(least.shape[1]):
            for b in order:
                start = 0.0
                for a, lag, distance in waits[b]:
                    if p >= distance:
                        start = max(start, float(head[a, p - distance] + least[a, p - distance] + lag[p]))
                for known in before[b]:
                    rows = [(a, p - distance + 1) for a, distance in known if p >= distance]
                    if rows:
                        begins = np.concatenate([head[a, :last] for a, last in rows])
                        total = begins + sum(work(a, np.searchsorted(head[a, :last], begins), last)
                                             for a, last in rows)
                        start = max(start, float(total.max()))
                head[b, p] = start
        return head

    @property
    def longest(self) -> float:
        """The longest path through an operation."""
        return float((self.head + self.least + self.tail).max())

    def on(self, problem: Problem, device: int) -> list[_Row]:
        """The rows of blocks that run on ``device``."""
        return [_Row(self.head[k], self.tail[k], self.fixed[k], self.is_open, self.shortest[k], self.longest_of[k])
                for k, i in enumerate(self.costs.blocks) if device in problem.blocks[i].devices]


@dataclass(frozen=True)
class _Row:
    """One block's operations on a device."""

    head: Floats
    tail: Floats
    fixed: Floats
    is_open: npt.NDArray[np.bool_]
    shortest: Floats
    longest: Floats

    def work(self, chosen: npt.NDArray[np.bool_]) -> float:
        """The least time of the ``chosen`` ones."""
        inside = int((chosen & self.is_open).sum())
        outside = int(self.is_open.sum()) - inside
        opened = max(float(self.shortest[inside]), float(self.shortest[-1] - self.longest[outside]))
        return float(self.fixed[chosen].sum()) + opened


def _device_bound(rows: Sequence[_Row]) -> float:
    best = 0.0
    if not rows:
        return best
    heads = sorted({float(value) for row in rows for value in row.head})[:_TRIED]
    tails = sorted({float(value) for row in rows for value in row.tail})[:_TRIED]
    for head in heads:
        for tail in tails:
            chosen = [(row.head >= head) & (row.tail >= tail) for row in rows]
            if any(mask.any() for mask in chosen):
                work = sum(row.work(mask) for row, mask in zip(rows, chosen, strict=True))
                best = max(best, head + tail + work)
    return best
