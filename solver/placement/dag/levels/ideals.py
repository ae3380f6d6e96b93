"""The ideals of a graph that is a set of paths, and the levels that can be removed from the end of each.

An *ideal* is a set of groups without predecessors outside it: one number per path (:mod:`weft.solver.placement.paths`),
the number of its groups, from its start, in the ideal. A *level* is the difference of an ideal and a smaller one; it
falls into connected *pieces*.

Ideals are named by the numbers of groups on a family's paths, falling, and a level by its segments of families; of
those that differ by the names of interchangeable paths only one is kept.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.solver.cpsat.budget import Budget
from weft.solver.placement.groups import Groups, least_times, least_work, waits
from weft.solver.placement.params import PARAMS
from weft.solver.placement.paths import Paths

Ideal: TypeAlias = tuple[int, ...]
#: The contents of a piece, or a stage, sorted: of a path of a family the groups from one place up to another.
Piece: TypeAlias = tuple[tuple[int, int, int], ...]


class TooWide(Exception):
    """More ideals or cuts of them than the program supports, a graph it does not support, or the time is over."""


@dataclass(frozen=True)
class LevelCuts:
    """All ways to remove a level from an ideal: the numbers of the ideal left, and of the level."""

    rest: NDArray[np.int64]
    level: NDArray[np.int64]


class Ideals:
    """``all[i]``: ideals by number, 0 the empty one, 1 the whole graph; ``levels[i]``: the pieces of a level.

    Levels are kept if no load need exceed ``limit`` and no more devices be used than there are. Raises :class:`TooWide`
    if devices are of several kinds, past ``max_cuts``, and if pieces of a level may be cheaper together than one of
    them alone, as a tensor may join them; not so with ``loose``, where the absence of stages is proven for memory
    alone, not for loads.
    """

    def __init__(self, groups: Groups, budget: Budget, *, limit: float, max_cuts: int = PARAMS.max_cuts,
                 loose: bool = False) -> None:
        self.groups, self.budget, self.limit, self.devices = groups, budget, limit, groups.problem.devices
        self.max_cuts = max_cuts
        if sum(kind.count > 0 for kind in groups.problem.kinds) > 1:
            raise TooWide("several kinds of device")
        if not loose and _has_loose_net(groups):
            raise TooWide("a tensor joins operators of which neither comes before the other")
        form = Paths.of(groups)
        self.paths, self.families, self.followers = form.paths, form.families, form.followers
        self.family, self._twin = form.family, form.has_twin  # a twin: so is the path before it
        self.least, self.work = least_times(groups).tolist(), least_work(groups).tolist()
        self.least_before, self.work_before = self.sums(self.least), self.sums(self.work)
        self.all: list[Ideal] = []
        self.levels: list[tuple[Piece, ...]] = []
        self._number: dict[Ideal, int] = {}
        self._level: dict[tuple[Piece, ...], int] = {}
        self._cuts: dict[int, LevelCuts] = {}
        self._register((0,) * len(self.paths))
        self.whole = self._register(tuple(map(len, self.paths)))
        self._names = math.prod(math.comb(len(family) + len(self.paths[family.start]), len(family))
                                for family in self.families)  # of ideals, were no path before another

    @property
    def count(self) -> int:
        """The number of cuts made so far."""
        return sum(len(cuts.rest) for cuts in self._cuts.values())

    def sums(self, amounts: Sequence[float]) -> list[list[float]]:
        """Per path the prefix sums of an amount over its groups, before each of its places."""
        return [[0.0, *itertools.accumulate(amounts[group] for group in path)] for path in self.paths]

    def sum_of(self, sums: Sequence[Sequence[float]], piece: Piece) -> float:
        """The sum of that amount over such a piece."""
        return sum(sums[self.families[f].start][end] - sums[self.families[f].start][start] for f, start, end in piece)

    # -- names -------------------------------------------------------------------------------------------------------

    def name(self, ideal: Sequence[int]) -> Ideal:
        """The ideal that represents all that differ from this one by names of interchangeable paths."""
        return tuple(itertools.chain.from_iterable(
            sorted(ideal[family.start:family.stop], reverse=True) if len(family) > 1 else (ideal[family.start],)
            for family in self.families))

    def members(self, piece: Piece) -> list[int]:
        """Groups that such a piece, or stage, can consist of."""
        taken = [family.start for family in self.families]
        found: list[int] = []
        for family, start, end in piece:
            found.extend(self.paths[taken[family]][start:end])
            taken[family] += 1
        return found

    def _register(self, ideal: Ideal) -> int:
        number = self._number.get(ideal)
        if number is None:
            number = self._number[ideal] = len(self.all)
            self.all.append(ideal)
        return number

    # -- cuts --------------------------------------------------------------------------------------------------------

    def cuts(self, number: int) -> LevelCuts:
        """The levels that can be removed from ideal ``number``."""
        if number not in self._cuts:
            if self._names > PARAMS.max_names:
                raise TooWide(f"up to {self._names:.0e} ideals")
            rests: list[int] = []
            levels: list[int] = []
            ideal, before = self.all[number], self.count
            for rest, roots in self._take(ideal):
                if before + len(rests) >= self.max_cuts:
                    raise TooWide(f"more than {self.max_cuts} cuts")
                if len(rests) % 1000 == 0 and self.budget.spent:
                    raise TooWide("the time is over")
                pieces: dict[int, list[tuple[int, int, int]]] = {}
                for path, (left, root) in enumerate(zip(rest, roots, strict=True)):
                    if left < ideal[path]:
                        pieces.setdefault(root, []).append((self.family[path], left, ideal[path]))
                key = tuple(sorted(tuple(sorted(piece)) for piece in pieces.values()))
                level = self._level.get(key)
                if level is None:
                    level = self._level[key] = len(self.levels)
                    self.levels.append(key)
                rests.append(self._register(self.name(rest)))
                levels.append(level)
            self._cuts[number] = LevelCuts(np.array(rests, np.int64), np.array(levels, np.int64))
        return self._cuts[number]

    def cut(self, number: int, index: int) -> tuple[Ideal, list[tuple[Piece, list[int]]]]:
        """Cut ``index`` of ideal ``number``: the ideal left, path by path (not renamed), and each piece with its
        groups.
        """
        ideal = self.all[number]
        rest, roots = next(itertools.islice(self._take(ideal), index, None))
        found: dict[int, tuple[list[tuple[int, int, int]], list[int]]] = {}
        for path, (left, root) in enumerate(zip(rest, roots, strict=True)):
            if left < ideal[path]:
                segments, groups = found.setdefault(root, ([], []))
                segments.append((self.family[path], left, ideal[path]))
                groups.extend(self.paths[path][left:ideal[path]])
        return rest, [(tuple(sorted(segments)), groups) for segments, groups in found.values()]

    def _take(self, ideal: Ideal) -> Iterator[tuple[Ideal, Ideal]]:
        """What is left of ``ideal`` after each level that keeps to the limit, and per path the first path that its
        taken part hangs together with."""
        outside = sum(sums[-1] - sums[count] for sums, count in zip(self.work_before, ideal, strict=True))
        taken = (math.ceil(min(outside / self.limit * (1 - 1e-9), self.devices)) if outside and self.limit else 0)
        most = self.limit * (1 + 1e-9)
        room = most * max(0, self.devices - taken)
        rest, count = list(ideal), len(ideal)
        piece_of: list[int] = [-1] * count
        loads: list[float] = [0.0] * count
        least, work = self.least_before, self.work_before

        def take(path: int, total: float) -> Iterator[tuple[Ideal, Ideal]]:
            if path == count:
                left = tuple(rest)
                if left != ideal:
                    yield left, tuple(piece_of)
                return
            yield from take(path + 1, total)
            if any(rest[other] for other in self.followers[path]):
                return
            up_to = ideal[path]
            if self._twin[path] and ideal[path - 1] == ideal[path]:
                up_to = ideal[path - 1] - rest[path - 1]  # the twin before takes no less
            joined = {piece_of[other] for other in self.followers[path] if ideal[other]}
            load = sum(loads[root] for root in joined)
            before = list(piece_of), list(loads)
            root = min(joined, default=path)
            for p in range(path):
                if piece_of[p] in joined:
                    piece_of[p] = root
            piece_of[path] = root
            for number in range(1, up_to + 1):
                more = least[path][ideal[path]] - least[path][ideal[path] - number]
                all_of_it = total + work[path][ideal[path]] - work[path][ideal[path] - number]
                if load + more > most or all_of_it > room:
                    break
                loads[root] = load + more
                rest[path] = ideal[path] - number
                yield from take(path + 1, all_of_it)
            rest[path] = ideal[path]
            piece_of[:], loads[:] = before

        yield from take(0, 0.0)


def _has_loose_net(groups: Groups) -> bool:
    """Whether all groups of some net can be in one level, and not in one piece of it: step by step from one to another
    of which one comes before the other, its groups do not all hang together. (What comes between two groups of a level
    is in it too.) So it is with what backward operators pass to each other beside the forward graph."""
    before = [0] * groups.count  # all that comes before a group, as bits
    for first, second in sorted(waits(groups), key=lambda pair: pair[1]):
        before[second] |= before[first] | 1 << first
    for net in groups.nets:
        apart = set(net.groups[1:])
        fresh = [net.groups[0]]
        while fresh and apart:
            one = fresh.pop()
            joined = {other for other in apart if before[max(one, other)] >> min(one, other) & 1}
            apart -= joined
            fresh.extend(joined)
        if apart:
            return True
    return False
