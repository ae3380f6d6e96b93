"""The problem of covering a graph with parts of several backends, and the cost of a cover.

A cover contains each operator once. Its cost is the time of its parts, and for every value that one backend makes and
another one reads, the cost of the boundary between the two: once for each backend that reads it, however many of its
parts do. Parts are run one after another, so no two may wait for each other, directly or through others.

Parts that wait for each other are found here, so that they can be forbidden or split.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from weft.solver.late import nx
from weft.solver.placement.problem import PlacementError


@dataclass(frozen=True, slots=True)
class CoverPart:
    """A part that may be chosen: its operators, by number, its backend, and the seconds of a call, including the
    launch."""

    operators: frozenset[int]
    backend: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Value:
    """The output of operator ``maker`` for ``readers``. ``boundary``: its cost in seconds if the first of two backends
    makes it and the second reads it; pairs that are not listed cost nothing."""

    maker: int
    readers: tuple[int, ...]
    boundary: Mapping[tuple[str, str], float] = field(default_factory=dict)


@dataclass(frozen=True)
class CoverProblem:
    """``operators``: their number; they are numbered in an order in which they can run.

    Raises :class:`~weft.solver.placement.problem.PlacementError` for an operator without a candidate, for a value that
    is read before it is made, and for a candidate that cannot be one part: another operator comes between two of its
    own, and would have to run in the middle of it.
    """

    operators: int
    values: tuple[Value, ...]
    candidates: tuple[CoverPart, ...]

    def __post_init__(self) -> None:
        for value in self.values:
            if not all(0 <= value.maker < reader < self.operators for reader in value.readers):
                raise PlacementError(f"operator {value.maker} makes a value for {value.readers}: readers must come "
                                     f"later, and operators are numbered below {self.operators}")
        for candidate in self.candidates:
            if not candidate.operators or not all(0 <= i < self.operators for i in candidate.operators):
                raise PlacementError(f"a part of {candidate.backend} has the operators {sorted(candidate.operators)}: "
                                     f"it needs at least one, numbered below {self.operators}")
            if not 0 <= candidate.seconds < float("inf"):
                raise PlacementError(f"a part of {candidate.backend} takes {candidate.seconds} s: it must be a number "
                                     "of 0 or more")
            if (inside := between(self.after, candidate.operators)) is not None:
                raise PlacementError(f"a part of {candidate.backend} with operators {sorted(candidate.operators)} is "
                                     f"not convex: operator {inside} reads some of them and is read by others")
        missing = set(range(self.operators)).difference(*(candidate.operators for candidate in self.candidates))
        if missing:
            raise PlacementError(f"no backend computes operator {min(missing)}")

    @cached_property
    def after(self) -> tuple[tuple[int, ...], ...]:
        """For each operator those that read its outputs."""
        found: list[set[int]] = [set() for _ in range(self.operators)]
        for value in self.values:
            found[value.maker].update(value.readers)
        return tuple(tuple(sorted(readers)) for readers in found)

    @cached_property
    def backends(self) -> tuple[str, ...]:
        """The backends of all candidates."""
        return tuple(sorted({candidate.backend for candidate in self.candidates}))

    def cover(self, chosen: Iterable[int], bound: float = 0.0) -> Cover:
        """The cover of these candidates. Raises :class:`~weft.solver.placement.problem.PlacementError` if they are not
        one."""
        found = Cover(self, tuple(sorted(chosen)), bound)
        if fault := found.fault():
            raise PlacementError(fault)
        return found


@dataclass(frozen=True)
class Cover:
    """``chosen``: the numbers of the problem's candidates. ``bound``: a lower bound in seconds on all covers."""

    problem: CoverProblem
    chosen: tuple[int, ...]
    bound: float = 0.0

    @property
    def parts(self) -> list[CoverPart]:
        """The chosen candidates."""
        return [self.problem.candidates[i] for i in self.chosen]

    @cached_property
    def part_of(self) -> tuple[int, ...]:
        """For each operator its part in :attr:`parts`; the last one if there are several, -1 if there is none."""
        found = [-1] * self.problem.operators
        for number, part in enumerate(self.parts):
            for i in part.operators:
                found[i] = number
        return tuple(found)

    @cached_property
    def seconds(self) -> float:
        """Its time in seconds, including boundaries."""
        return sum(part.seconds for part in self.parts) + self.boundaries

    @cached_property
    def boundaries(self) -> float:
        """Seconds of all boundaries between backends."""
        backend = [self.parts[part].backend for part in self.part_of]
        return sum(value.boundary.get((backend[value.maker], other), 0.0) for value in self.problem.values
                   for other in {backend[reader] for reader in value.readers} if other != backend[value.maker])

    @property
    def order(self) -> list[int]:
        """Its :attr:`parts`, by number, in an order in which they can run."""
        return order_of(self.problem.after, self.part_of, len(self.parts))

    def fault(self) -> str | None:
        """Why it is not a cover; ``None`` if it is one."""
        count = [0] * self.problem.operators
        for part in self.parts:
            for i in part.operators:
                count[i] += 1
        for i, times in enumerate(count):
            if times != 1:
                return f"operator {i} is in {times} parts, it must be in one"
        if cycle := a_cycle(self.problem.after, self.part_of, len(self.parts)):
            return (f"the parts with operators {', '.join(str(sorted(self.parts[c].operators)) for c in cycle)} wait "
                    "for each other")
        return None


def cycles(after: Sequence[Sequence[int]], part_of: Sequence[int], count: int) -> list[list[int]]:
    """Cycles among ``count`` parts, the shortest through the first part of each strongly connected set; none if there
    is an order of the parts. ``after``: for each operator those that read it; ``part_of``: its part."""
    graph = _graph(after, part_of, count)
    return [_shortest(graph, min(knot), knot) for knot in nx.strongly_connected_components(graph) if len(knot) > 1]


def a_cycle(after: Sequence[Sequence[int]], part_of: Sequence[int], count: int) -> list[int]:
    """One cycle, or an empty list."""
    return next(iter(cycles(after, part_of, count)), [])


def order_of(after: Sequence[Sequence[int]], part_of: Sequence[int], count: int) -> list[int]:
    """The parts in an order in which they can run: among the ready ones, the one with the first operator is next."""
    first = [len(part_of)] * count
    for i in reversed(range(len(part_of))):
        first[part_of[i]] = i
    return list(nx.lexicographical_topological_sort(_graph(after, part_of, count), key=first.__getitem__))


def between(after: Sequence[Sequence[int]], operators: Iterable[int]) -> int | None:
    """An operator outside that waits for some of ``operators`` and that others of them wait for, if there is one: they
    are not a convex set."""
    own, reached = set(operators), dict[int, int]()  # outside, and the first operator outside on the way
    last = max(own)
    for i in range(min(own), last + 1):
        if i not in own and i not in reached:
            continue
        for reader in after[i]:
            if reader <= last and (reader not in own or i not in own):
                if reader in own:
                    return reached[i]
                reached.setdefault(reader, reached.get(i, reader))
    return None


def _graph(after: Sequence[Sequence[int]], part_of: Sequence[int], count: int) -> nx.DiGraph[int]:
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from((part_of[i], part_of[j]) for i, readers in enumerate(after) for j in readers
                         if part_of[i] != part_of[j])
    return graph


def _shortest(graph: nx.DiGraph[int], start: int, knot: set[int]) -> list[int]:
    """The shortest cycle through ``start`` within ``knot``."""
    came: dict[int, int] = {}
    waiting = deque([start])
    while waiting:
        part = waiting.popleft()
        for other in sorted(graph.successors(part)):
            if other == start:
                found = [part]
                while found[-1] != start:
                    found.append(came[found[-1]])
                return found[::-1]
            if other in knot and other not in came:
                came[other] = part
                waiting.append(other)
    raise AssertionError("a knot has a cycle through each of its parts")
