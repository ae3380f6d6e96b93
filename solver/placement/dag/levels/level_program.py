"""Stages under a limit on the largest load, by dynamic programming over levels.

Stages of one depth are a *level*: none of them follows another. If levels are removed from the end of the graph,
deepest last, the rest after each is an ideal (:mod:`weft.solver.placement.dag.levels.ideals`). With ``devices(d, c)``,
the fewest devices that run in d levels all groups outside ideal c:

    devices(d, c) = min over ideals c' that contain c of  devices(d - 1, c') + packed(c' without c, d)

``packed(L, d)`` puts the connected pieces of L into stages on as few devices as keep to the limit on the load and to
the memory for d micro-batches in flight: pieces of a level cannot be in two stages, and several may share one, which
costs no less than each alone (:class:`~weft.solver.placement.dag.levels.ideals.Ideals` refuses graphs where it may); a
stage is on the smallest number of devices that will do. All graphs of stages are covered: give each stage the level of
its depth. The first d with devices(d, nothing) no larger than the number of devices is the least depth; no such d at
all proves that the limit cannot be kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.solver.placement.dag.levels.ideals import Ideals, Piece, TooWide
from weft.solver.placement.dag.levels.ways import LongestWays
from weft.solver.placement.groups import Division, room
from weft.solver.placement.params import PARAMS

#: In place of a limit of nothing at all, so that shares of it are numbers.
_TINY = math.ulp(0.0)

#: The pieces of a level in each stage, by their places, and its number of devices.
Packing: TypeAlias = tuple[tuple[tuple[int, ...], int], ...]


class LevelProgram:
    """One dynamic program a limit, over the same ideals. With ``ways`` a load is what a stage adds to a step, idle time
    included, a micro-batch (:mod:`weft.solver.placement.dag.levels.least_step`); with ``load_of`` it is what that says
    of a stage's groups and the index of its number of devices, never less than their work. ``heavy_times``: so many
    different times of groups, the longest, count in what a rest needs."""

    def __init__(self, ideals: Ideals, ways: LongestWays | None = None, *,
                 load_of: Callable[[Sequence[int], int], float] | None = None,
                 heavy_times: int = PARAMS.heavy_times) -> None:
        groups = ideals.groups
        kind, = (k for k, kind in enumerate(groups.problem.kinds) if kind.count)
        self.ideals, self.groups, self.kind, self.ways, self.load_of = ideals, groups, kind, ways, load_of
        device = groups.problem.kinds[kind]
        self.factor, self.memory, self.count = device.transfer_factor, device.memory, device.count
        self.degrees = [(r, times[:, kind].tolist()) for r, times in groups.degrees if r <= device.count]
        self.resident, self.held = groups.resident.tolist(), groups.per_micro_batch.tolist()
        self._costs: dict[Piece, tuple[tuple[float, ...], float, float]] = {}
        self.steps = 0
        self.depth = 0
        self._packed = 0
        times = self.degrees[0][1]
        self.heavy = [[g for g in range(groups.count) if times[g] >= time]
                      for time in sorted({t for t in times if t > 0})[-heavy_times:]]
        self._work_left: list[float] = []
        self._heavy_left: list[list[int]] = []
        self._level_work: list[float] = []
        self._level_least: list[float] = []

    # -- one limit -----------------------------------------------------------------------------------------------

    def run(self, limit: float, *, fewest: bool = False, deepest: int | None = None) -> Division | None:
        """The shallowest stages within ``limit`` on the devices there are, with ``fewest`` on as few of them as that
        depth takes; ``None``: there are none, or none of depth ``deepest`` or less."""
        ideals, known = self.ideals, _UnderLimit(self, limit)
        if known.need[ideals.whole] > self.count:
            return None
        known.best[ideals.whole] = 0
        frontier = {ideals.whole: 0}
        parents: list[dict[int, tuple[int, int, int]]] = []
        for depth in range(1, (self.count if deepest is None else min(deepest, self.count)) + 1):
            known.begin_level(self.groups.problem.in_flight(depth))
            for ideal, used in sorted(frontier.items(), key=lambda entry: entry[1]):
                self._take_levels(known, ideal, used)
                if 0 in known.reached and not fewest:
                    break
            parents.append(known.parent)
            if 0 in known.reached:
                self.depth = depth
                return self._read(parents, limit)
            known.best, frontier = known.bar, known.reached
        return None

    def _take_levels(self, known: _UnderLimit, ideal: int, used: int) -> None:
        """All levels removed from ``ideal``, outside which ``used`` devices are, that lead to a rest on fewer devices
        than known."""
        ideals, none = self.ideals, self.count + 1
        cuts = ideals.cuts(ideal)
        if ideals.budget.spent:
            raise TooWide("the time is over")
        known.grow()
        low = used + known.least[cuts.level]
        index = np.flatnonzero((low < known.bar[cuts.rest]) & (low + known.need[cuts.rest] <= self.count))
        level, rest = cuts.level[index], cuts.rest[index]
        self.steps += len(index)
        for fresh in np.unique(level[known.packed[level] < 0]).tolist():
            stages = self._pack(ideals.levels[fresh], known.limit, known.in_flight, int(known.least[fresh]))
            known.packed[fresh] = none if stages is None else sum(r for _, r in stages)
            known.until[fresh] = self._room(ideals.levels[fresh], stages)
        devices = used + known.packed[level]
        good = np.flatnonzero((devices < known.bar[rest]) & (devices + known.need[rest] <= self.count))
        good = good[np.argsort(devices[good], kind="stable")]
        for at in good[np.unique(rest[good], return_index=True)[1]].tolist():
            number = int(rest[at])
            known.reached[number] = known.bar[number] = int(devices[at])
            known.parent[number] = ideal, int(index[at]), known.in_flight

    def needed(self, limit: float, known: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """The least number of devices for each ideal."""
        ideals = self.ideals
        for ideal in ideals.all[len(self._work_left):]:
            inside = [g for path, count in zip(ideals.paths, ideal, strict=True) for g in path[:count]]
            self._work_left.append(sum(ideals.work[g] for g in inside))
            self._heavy_left.append([len(set(heavy).intersection(inside)) for heavy in self.heavy])
        fresh = slice(len(known), None)
        work = np.array(self._work_left[fresh])
        with np.errstate(over="ignore"):  # more devices than a number holds are too many
            found = np.maximum(np.ceil(work / max(limit, _TINY) * (1 - 1e-9)),
                               [any(ideal) for ideal in ideals.all[fresh]])
        if self.heavy:
            counts = np.array(self._heavy_left[fresh]).reshape(-1, len(self.heavy))
            shares = np.array([self._share(heavy, limit) for heavy in self.heavy])
            needed = np.where(counts > 0, counts * np.minimum(shares, self.count + 1), 0.0)
            found = np.maximum(found, np.ceil(needed * (1 - 1e-9)).max(axis=1))
        return np.concatenate([np.array(known, np.int64), np.minimum(found, self.count + 1).astype(np.int64)])

    def _share(self, heavy: Sequence[int], limit: float) -> float:
        """The least number of devices for one of ``heavy``: a stage on r devices contains no more of them than r
        times."""
        shares = [r / most for r, times in self.degrees
                  if (most := math.floor(min(len(heavy), limit / max(min(times[g] for g in heavy), _TINY)
                                             * (1 + 1e-9))))]
        return min(shares, default=math.inf)

    def crowded(self) -> float:
        """Some device has its share of the groups that take at least as long as each (where none is replicated)."""
        if len(self.degrees) > 1:
            return 0.0
        times = self.degrees[0][1]
        return max((min(times[g] for g in heavy) * -(-len(heavy) // self.count) for heavy in self.heavy), default=0.0)

    def least_devices(self, limit: float, known: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """The least number of devices for each level; one more than there are if a piece exceeds the limit."""
        ideals = self.ideals
        for pieces in ideals.levels[len(self._level_work):]:
            self._level_work.append(sum(ideals.sum_of(ideals.work_before, piece) for piece in pieces))
            self._level_least.append(max(ideals.sum_of(ideals.least_before, piece) for piece in pieces))
        fresh = slice(len(known), None)
        found = np.maximum(np.ceil(np.array(self._level_work[fresh]) / max(limit, _TINY) * (1 - 1e-9)), 1)
        found[np.array(self._level_least[fresh]) > limit * (1 + 1e-9)] = self.count + 1
        return np.concatenate([np.array(known, np.int64), np.minimum(found, self.count + 1).astype(np.int64)])

    # -- a level -------------------------------------------------------------------------------------------------

    def _pack(self, pieces: Sequence[Piece], limit: float, in_flight: int, least: int) -> Packing | None:
        """``pieces`` in stages on as few devices as keep to the limit and the memory, or ``None`` where one alone does
        not. ``least``: a bound on how many."""
        alone = [self._devices(piece, limit, in_flight) for piece in pieces]
        if not all(alone):
            return None
        best: Packing = tuple(((i,), r) for i, r in enumerate(alone))
        fewest = sum(alone)
        ranked = sorted(range(len(pieces)), key=lambda i: (-self.cost(pieces[i])[0][0], pieces[i]))

        def place(at: int, stages: list[tuple[tuple[int, ...], Piece, int]], used: int) -> None:
            nonlocal best, fewest
            self._packed += 1
            if self._packed % 1000 == 0 and self.ideals.budget.spent:
                raise TooWide("the time is over")
            if used >= fewest or fewest == least:
                return
            if at == len(ranked):
                best, fewest = tuple((inside, r) for inside, _, r in stages), used
                return
            piece = pieces[ranked[at]]
            tried: set[Piece] = set()
            for i, (inside, stage, r) in enumerate(stages):
                together = tuple(sorted((*stage, *piece)))
                if together not in tried and (more := self._devices(together, limit, in_flight)):
                    tried.add(together)
                    place(at + 1, [*stages[:i], ((*inside, ranked[at]), together, more), *stages[i + 1:]],
                          used - r + more)
            place(at + 1, [*stages, ((ranked[at],), piece, alone[ranked[at]])], used + alone[ranked[at]])

        if fewest > least and len(pieces) > 1:
            place(0, [], 0)
        return best

    def _room(self, pieces: Sequence[Piece], stages: Packing | None) -> int:
        """How many micro-batches in flight these stages have memory for, and so the fewest devices stay the fewest; no
        stages for fewer are none for more."""
        most = self.count
        for inside, r in stages or ():
            _, resident, held = self.cost(tuple(sorted(segment for i in inside for segment in pieces[i])))
            if self.memory is not None and held:
                most = math.floor(min(most, (room(self.memory) - resident) * r / held))
        return most

    def _devices(self, stage: Piece, limit: float, in_flight: int) -> int:
        """On how many devices at least such a stage keeps to the limit and the memory; 0: on no number there is."""
        loads, resident, held = self.cost(stage)
        for (r, _), load in zip(self.degrees, loads, strict=True):
            if load <= limit * (1 + 1e-12) and (
                    self.memory is None or resident + in_flight * held / r <= room(self.memory)):
                return r
        return 0

    def cost(self, stage: Piece) -> tuple[tuple[float, ...], float, float]:
        """The load of such a stage on each number of devices; its memory, and its memory per micro-batch."""
        if stage not in self._costs:
            inside = self.ideals.members(stage)
            self._costs[stage] = (tuple(self.load(inside, d) for d in range(len(self.degrees))),
                                  sum(self.resident[g] for g in inside), sum(self.held[g] for g in inside))
        return self._costs[stage]

    def load(self, inside: Sequence[int], degree: int) -> float:
        """The load of a stage of these groups on that number of devices."""
        if self.load_of is not None:
            return self.load_of(inside, degree)
        among = set(inside)
        cut = sum(self.groups.nets[i].cost for i in {i for group in inside for i in self.groups.nets_of[group]}
                  if not among.issuperset(self.groups.nets[i].groups))
        r, times = self.degrees[degree]
        load = float(sum(times[group] for group in inside) + cut * self.factor / r)
        if self.ways is None:
            return load
        before, both = self.ways.to(among)
        problem, count = self.groups.problem, self.groups.problem.micro_batches or 1
        added_up = 0.0 if not degree else problem.degrees[degree - 1].all_reduce * sum(
            problem.nodes[node].gradient for group in inside for node in self.groups.members[group])
        return load + max(before, both - added_up) / count

    # -- the answer ----------------------------------------------------------------------------------------------

    def _read(self, parents: Sequence[dict[int, tuple[int, int, int]]], limit: float) -> Division:
        """The stages, first to last. Ideals are named canonically, so paths are followed by their new names."""
        ideals, number = self.ideals, 0
        steps: list[tuple[int, int, int]] = []
        for parent in reversed(parents):
            steps.append(parent[number])
            number = steps[-1][0]
        # Forwards from the whole graph: path p of a canonical ideal is really names[p].
        names = list(range(len(ideals.paths)))
        place = {group: (p, i) for p, path in enumerate(ideals.paths) for i, group in enumerate(path)}
        found: list[tuple[tuple[int, ...], int]] = []
        for number, index, in_flight in reversed(steps):
            rest, pieces = ideals.cut(number, index)
            stages = self._pack([piece for piece, _ in pieces], limit, in_flight, 0)
            assert stages is not None
            found[:0] = [(tuple(sorted(ideals.paths[names[place[g][0]]][place[g][1]]
                                       for i in inside for g in pieces[i][1])), r) for inside, r in stages]
            moved = list(names)
            for family in ideals.families:
                for p, old in zip(family, sorted(family, key=lambda p: -rest[p]), strict=True):
                    moved[p] = names[old]
            names = moved
        degree = {r: d for d, (r, _) in enumerate(self.degrees)}
        return Division(max(self.load(stage, degree[r]) for stage, r in found),
                       tuple((self.kind, stage) for stage, _ in found), tuple(r for _, r in found))


class _UnderLimit:
    """What one run knows of ideals and levels; it grows as the cuts of ideals are made.

    By ideal: ``need``, devices that it needs at least; ``best``, the fewest outside it in the levels taken so far, and
    ``bar`` with the level that is being taken. By level: ``least``, devices that it needs at least; ``packed``, those
    that it takes (-1: not known yet), which holds for up to ``until`` micro-batches in flight. ``reached``: ideals left
    by the level that is being taken, with the devices outside; ``parent``: where from."""

    def __init__(self, program: LevelProgram, limit: float) -> None:
        self.program, self.limit, self.in_flight = program, limit, 0
        self.need, self.least = program.needed(limit, []), program.least_devices(limit, [])
        self.best = np.full(len(program.ideals.all), program.count + 1)
        self.bar = self.best
        self.packed, self.until = np.full(0, -1), np.full(0, 0)
        self.reached: dict[int, int] = {}
        self.parent: dict[int, tuple[int, int, int]] = {}

    def begin_level(self, in_flight: int) -> None:
        """A level of stages with so many micro-batches in flight."""
        self.in_flight = in_flight
        self.packed[self.until < in_flight] = -1
        self.reached, self.parent, self.bar = {}, {}, self.best.copy()

    def grow(self) -> None:
        """Take up the ideals and levels added since."""
        ideals = self.program.ideals
        if len(ideals.all) > len(self.need):
            self.need = self.program.needed(self.limit, self.need)
            self.best, self.bar = (_extended(known, len(self.need), self.program.count + 1)
                                   for known in (self.best, self.bar))
        if len(ideals.levels) > len(self.least):
            self.least = self.program.least_devices(self.limit, self.least)
        self.packed, self.until = (_extended(known, len(self.least), -1) for known in (self.packed, self.until))


def _extended(known: NDArray[np.int64], size: int, value: int) -> NDArray[np.int64]:
    return np.concatenate([known, np.full(size - len(known), value)])
