"""Lower bounds on the makespan of all sequences that a partial one leaves open, at the price of longest paths.

*Heads.* An operation in an open place lasts at least as long as the least of the classes left. The copies of a block run
in turn; k open places in a row of them take at least the k shortest of those left, together. Head and tail of an
operation are longest paths with these lengths, over its own micro-batch's waits and the copies in turn.

*Devices.* How much work a device has is known exactly where as many of each class are left as there are open places,
whatever their order (where more are left, at least the shortest). Let S be its operations with heads of h or more and
tails of t or more. They run between h and the makespan less t, one at a time, so the makespan is no less than h + t +
the work of S; and that is what the device has in all, less the most that the others can take.

*Memory.* A micro-batch of class c takes up at least so much memory x time on a device
(:mod:`weft.solver.bounds.memory`); together no more than its capacity x the makespan. The order does not count.

Times are whole numbers of a unit; where sums of them have more digits than floats hold, a little less is claimed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import networkx as nx
import numpy as np
import numpy.typing as npt

from weft.solver.bounds.memory import area_of_one, chains_of_one
from weft.solver.choices.sequences.partial import JobPart, Partial
from weft.solver.control.clock import checkpoint
from weft.solver.problem import Problem
from weft.solver.ticks import TickProblem, in_whole_numbers
from weft.solver.wide.problem import WideProblem

__all__ = ["Costs"]

#: Sums of whole numbers up to this are exact in floats; above, that share less is claimed.
_EXACT, _ROUNDING = 2.0**53, 1e-10
#: Heads and tails of a device's earliest and latest operations that are tried.
_TRIED = 8
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _JobCosts:
    """One job's blocks in topological order: ``durations[b, c]``, and what each waits for and is waited for by, as
    (block, lags by class, distance)."""

    blocks: tuple[int, ...]
    durations: Floats
    into: Sequence[Sequence[tuple[int, Floats, int]]]


class Costs:
    """What the blocks of ``wide``, which has no open choices, cost in each class; and bounds that follow from it."""

    def __init__(self, wide: WideProblem) -> None:
        self.wide = wide
        values = [amount for block in wide.blocks for name in self._names(block.job)
                  for plain in [block.of_class(name)] for amount in (plain.duration, *(w.lag for w in plain.after))]
        whole, self.unit = in_whole_numbers(values)
        self._whole = dict(zip(map(str, values), map(float, whole), strict=True))
        self._sum = float(sum(map(abs, whole)))
        self._job = {job: self._of_job(job) for job in wide.jobs or (None,)}
        self._area: dict[tuple[str | None, str | None], list[Fraction | None]] = {}

    def _names(self, job: str | None) -> tuple[str | None, ...]:
        return self.wide.classes_of(job) or (None,)

    def _of_job(self, job: str | None) -> _JobCosts:
        numbers = [i for i, block in enumerate(self.wide.blocks) if block.job == job]
        index = {self.wide.blocks[i].name: i for i in numbers}
        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_nodes_from(numbers)
        graph.add_edges_from((index[wait.block], i) for i in numbers for wait in self.wide.blocks[i].after
                             if wait.distance == 0)
        order = tuple(nx.lexicographical_topological_sort(graph))
        place = {i: k for k, i in enumerate(order)}
        names = self._names(job)
        plain = {i: [self.wide.blocks[i].of_class(name) for name in names] for i in order}
        durations = np.array([[self._whole[str(block.duration)] for block in plain[i]] for i in order])
        into = [[(place[index[wait.block]], np.array([self._whole[str(block.after[k].lag)] for block in plain[i]]),
                  wait.distance) for k, wait in enumerate(self.wide.blocks[i].after)] for i in order]
        return _JobCosts(order, durations, into)

    def work(self, job: str | None, name: str | None) -> float:
        """The work of a micro-batch of class ``name`` of ``job`` on all devices, in the problem's time unit."""
        return float(sum(block.of_class(name).duration * len(block.devices)
                         for block in self.wide.blocks if block.job == job))

    def bound(self, partial: Partial) -> float:
        """A lower bound on the makespan of every sequence that ``partial`` leaves open, in the problem's time unit."""
        checkpoint()
        jobs = [_Laid(self._job[job], part, [self._names(job).index(name) for name in part.names])
                for job, part in partial.jobs.items()]
        best = max(laid.longest for laid in jobs)
        for device in range(len(self.wide.devices)):
            best = max(best, _device_bound([entry for laid in jobs for entry in laid.on(self.wide, device)]))
        exact = self._sum * max(len(part.fixed) for part in partial.jobs.values()) < _EXACT
        time = Fraction(best) * self.unit * (1 if exact else Fraction(1 - _ROUNDING))
        return max(float(time), self.memory_bound(partial))

    def memory_bound(self, partial: Partial) -> float:
        """The part of it that memory says, in the problem's time unit."""
        best = Fraction(0)
        for device, of_device in enumerate(self.wide.devices):
            if not of_device.memory:
                continue
            area = Fraction(0)
            for job, part in partial.jobs.items():
                each = [self._areas(job, name)[device] for name in part.names]
                held = [amount or Fraction(0) for amount in each]
                area += sum((held[c] for c in part.fixed if c >= 0), Fraction(0))
                area += sum(sorted(held[c] for c, count in enumerate(part.left) for _ in range(count))[:part.open],
                            Fraction(0))
            best = max(best, area / Fraction(str(of_device.memory)))
        return float(best) * (1 - 1e-12)

    def _areas(self, job: str | None, name: str | None) -> list[Fraction | None]:
        """Memory x time that a micro-batch takes up on each device at least, in the problem's units."""
        if (job, name) not in self._area:
            blocks = tuple(block.of_class(name) for block in self.wide.blocks if block.job == job)
            instance = TickProblem.of(Problem(self.wide.name, self.wide.devices, blocks, self.wide.links))
            lags = chains_of_one(instance)
            found: list[Fraction | None] = []
            for device in range(len(self.wide.devices)):
                area = area_of_one(instance, device, lags)
                found.append(None if area is None else max(Fraction(0), area) * instance.tick * instance.memory_unit
                             / instance.inflation)
            self._area[job, name] = found
        return self._area[job, name]


class _Laid:
    """One job's operations in their places: the least and the most that each lasts, its head and its tail."""

    def __init__(self, costs: _JobCosts, part: JobPart, classes: Sequence[int]) -> None:
        self.costs, self.part = costs, part
        own = costs.durations[:, classes]  # by the part's own classes
        fixed = np.array(part.fixed)
        self.is_open = fixed < 0
        possible = list(part.possible) or [0]
        self.least = np.where(self.is_open, own[:, possible].min(axis=1)[:, None], own[:, fixed])
        self.fixed = np.where(self.is_open, 0.0, own[:, fixed])
        rest = np.repeat(own, part.left, axis=1) if part.open else own[:, :0]
        ranked = np.sort(rest, axis=1)
        zero = np.zeros((len(own), 1))
        #: The k shortest, and the k longest, of what is left, together.
        self.shortest = np.hstack([zero, ranked.cumsum(axis=1)])[:, :part.open + 1]
        self.longest_of = np.hstack([zero, ranked[:, ::-1].cumsum(axis=1)])[:, :part.open + 1]
        lags = [[(block, lag[classes], distance) for block, lag, distance in waits] for waits in costs.into]
        self._lag = [[(block, np.where(self.is_open, lag[possible].min(), lag[fixed]), distance)
                      for block, lag, distance in waits] for waits in lags]
        self.head = self._heads()
        self.tail = self._tails()

    @cached_property
    def _before(self) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Of each place: what is fixed before it, by block, and how many open places are."""
        fixed = np.hstack([np.zeros((len(self.fixed), 1)), self.fixed.cumsum(axis=1)])
        return fixed, np.concatenate([[0], self.is_open.cumsum()])

    def _heads(self) -> Floats:
        blocks, places = self.least.shape
        head = np.zeros((blocks, places))
        fixed, count = self._before
        for p in range(places):
            for b in range(blocks):
                start = 0.0
                for a, lag, distance in self._lag[b]:
                    if p >= distance:
                        start = max(start, head[a, p - distance] + self.least[a, p - distance] + lag[p - distance])
                if p:  # of the copies from q to p - 1
                    between = fixed[b, p] - fixed[b, :p] + self.shortest[b][count[p] - count[:p]]
                    start = max(start, float((head[b, :p] + between).max()))
                head[b, p] = start
        return head

    def _tails(self) -> Floats:
        blocks, places = self.least.shape
        tail = np.zeros((blocks, places))
        fixed, count = self._before
        consumers: list[list[tuple[int, Floats, int]]] = [[] for _ in range(blocks)]
        for b, waits in enumerate(self._lag):
            for a, lag, distance in waits:
                consumers[a].append((b, lag, distance))
        for p in reversed(range(places)):
            for a in reversed(range(blocks)):
                rest = 0.0
                for b, lag, distance in consumers[a]:
                    if p + distance < places:
                        rest = max(rest, lag[p] + self.least[b, p + distance] + tail[b, p + distance])
                if p + 1 < places:  # the copies from p + 1 to q
                    between = (fixed[a, p + 2:] - fixed[a, p + 1]
                               + self.shortest[a][count[p + 2:] - count[p + 1]])
                    rest = max(rest, float((between + tail[a, p + 1:]).max()))
                tail[a, p] = rest
        return tail

    @property
    def longest(self) -> float:
        """The longest path through an operation."""
        return float((self.head + self.least + self.tail).max())

    def on(self, wide: WideProblem, device: int) -> list[_Row]:
        """The rows of blocks that run on ``device``."""
        return [_Row(self.head[k], self.tail[k], self.fixed[k], self.is_open, self.shortest[k], self.longest_of[k])
                for k, i in enumerate(self.costs.blocks) if device in wide.blocks[i].devices]


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
        """The least that the ``chosen`` ones take."""
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
