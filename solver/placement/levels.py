"""Graphs of stages by dynamic programming over levels: exact, and quick where a graph is a few paths.

Stages of one depth are a *level*: none of them follows another. Taking levels off the end of the graph, deepest last,
what is left after each is a set of groups that nothing outside comes before (an ideal). The graph is a set of *paths*,
each group but a path's first and last having one neighbour on either side, so an ideal is one number a path: how many
groups of it are left. With ``devices(d, c)``, the fewest stages that hold in d levels all that is not in ideal c:

    devices(d, c) = min over ideals c' that contain c of  devices(d - 1, c') + stages(c' without c, d)

``stages(L, d)`` packs the connected pieces of L into as few stages as keep to the limit on the load and to the memory
for d micro-batches in flight: pieces of a level cannot be in two stages, and several may share one. All graphs of
stages are covered: give each stage the level of its depth. The first d with devices(d, nothing) no larger than the
number of devices is the least depth; no such d at all proves that the limit cannot be kept. So the least largest load
is found by bisection and proven by a last run just below it.

Paths that cost, hold and send the same between the same neighbours are interchangeable: of ideals that differ by their
names only one is kept. After the dynamic programs of Piper (Tarnawski et al., NeurIPS 2021: ideals, one stage each) and
GraphPipe (Jeon et al., ASPLOS 2025: series-parallel graphs by their splits); the levels are what makes it exact for
graphs of stages of any form. ``in_a_row`` is Piper's formulation: a level is one stage, connected or not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from solver.cpsat import Budget
from solver.placement.depth import waits
from solver.placement.groups import Groups
from solver.placement.slicing import Slicing

__all__ = ["LevelSolved", "TooWide", "levels"]

Ideal: TypeAlias = tuple[int, ...]
#: Bisection stops at this fraction between limits; the last run then proves the rest.
_CLOSE = 2e-3
#: So many different times, the longest, are counted in the bound on how many stages a rest needs.
_CLASSES = 4


class TooWide(Exception):
    """More ideals or cuts of them than this program is meant for."""


@dataclass(frozen=True)
class LevelSolved:
    """``stages`` from the first to the last, or ``None`` where no number of levels keeps to any limit; ``bound`` on the
    largest load, and ``depth``, the least within ``limit``. ``steps``: levels that were looked at in all."""

    stages: Slicing | None
    bound: float
    depth: int
    limit: float
    steps: int


def levels(groups: Groups, budget: Budget, *, least: float, most: float = math.inf, slack: float = 0.0,
           in_a_row: bool = False, twins: bool = True, max_steps: int = 3_000_000) -> LevelSolved:
    """The graph of stages (with ``in_a_row``: the row of stages) with the least largest load, and then the least depth
    among those with a largest load no more than ``slack`` above it.

    ``least`` and ``most``: bounds on the least largest load that are known. Without ``twins`` interchangeable paths are
    told apart all the same, as the published programs do (to measure what it costs). Raises :class:`TooWide` where the
    devices are of several kinds, a graph has too many ideals, or the budget ends first.
    """
    program = _Program(groups, budget, in_a_row, max_steps, twins)
    top = min(most, float(groups.least.sum()) + sum(net.cost for net in groups.nets) * program.factor) * (1 + 1e-9)
    least = max(least, program.crowded())
    low, found, more = least, None, _CLOSE
    limit = -1.0
    while found is None and limit < top:  # small limits leave little to look at: upwards, in growing steps
        limit = min(top, low * (1 + more)) if least > 0 else top
        found = program.run(limit)
        low, more = (limit, more * 4) if found is None else (low, more)
    if found is None:
        return LevelSolved(None, math.inf, 0, math.inf, program.steps)
    just_below = True  # often what was found is the best there is
    while found.value > low * (1 + 1e-9):
        just_below = just_below or found.value <= low * (1 + _CLOSE)
        limit = found.value * (1 - 1e-9) if just_below else (low + found.value) / 2
        better, just_below = program.run(limit), False
        low, found = (limit, found) if better is None else (low, better)
    limit = found.value * (1 + slack + 1e-9)
    shallow = program.run(limit, shallowest=True)
    assert shallow is not None
    return LevelSolved(shallow, min(low, found.value), program.depth, limit, program.steps)


class _Program:
    """The paths of the graph, and one dynamic program a limit."""

    def __init__(self, groups: Groups, budget: Budget, in_a_row: bool, max_steps: int,
                 twins: bool) -> None:
        there = [k for k, kind in enumerate(groups.problem.kinds) if kind.count]
        if len(there) != 1:
            raise TooWide("several kinds of device")
        self.groups, self.budget, self.in_a_row, self.max_steps = groups, budget, in_a_row, max_steps
        self.kind = there[0]
        device = groups.problem.kinds[self.kind]
        self.factor, self.memory = device.transfer_factor, device.memory
        self.count = device.count
        self.times = groups.times[:, self.kind].tolist()
        self.resident, self.held = groups.resident.tolist(), groups.per_micro_batch.tolist()
        self._find_paths(twins)
        self.steps = 0
        self.depth = 0
        self.everything = sum(self.times)
        # Numbers of groups that take at least so long, for the longest that several groups take.
        self.heavy = [(time, [[0, *itertools.accumulate(int(self.times[g] >= time) for g in path)]
                              for path in self.paths]) for time in sorted({t for t in self.times if t > 0})[-_CLASSES:]]
        self.left = [[0.0, *itertools.accumulate(self.times[group] for group in path)] for path in self.paths]

    def _find_paths(self, twins: bool) -> None:
        count = self.groups.count
        after: list[list[int]] = [[] for _ in range(count)]
        before: list[list[int]] = [[] for _ in range(count)]
        for first, second in waits(self.groups):
            after[first].append(second)
            before[second].append(first)
        paths: list[list[int]] = []
        on: dict[int, int] = {}
        for group in range(count):
            if len(before[group]) == 1 and len(after[before[group][0]]) == 1:
                paths[on[before[group][0]]].append(group)
                on[group] = on[before[group][0]]
            else:
                on[group] = len(paths)
                paths.append([group])
        families: dict[object, list[int]] = {}
        for index, path in enumerate(paths):
            place = {group: -1 - i for i, group in enumerate(path)}
            nets = sorted((tuple(sorted(place.get(g, g) for g in self.groups.nets[i].groups)), self.groups.nets[i].cost)
                          for i in {i for group in path for i in self.groups.nets_of[group]})
            key = (tuple(before[path[0]]), tuple(after[path[-1]]), tuple(nets),
                   tuple((self.times[g], self.resident[g], self.held[g]) for g in path))
            families.setdefault(key if twins else index, []).append(index)
        # From the end: a path after all that follow it. Interchangeable ones side by side.
        ranked = sorted(families.values(), key=lambda family: -max(paths[index][-1] for index in family))
        waiting, ranked = list(ranked), []
        done: set[int] = set()
        while waiting:
            family = next(f for f in waiting
                          if all(on[g] in done for index in f for g in after[paths[index][-1]]))
            waiting.remove(family)
            ranked.append(family)
            done.update(family)
        order = [index for family in ranked for index in family]
        self.paths = [paths[index] for index in order]
        new = {index: i for i, index in enumerate(order)}
        self.families = [range(new[family[0]], new[family[0]] + len(family)) for family in ranked]
        self.twin = [family.start < i for family in self.families for i in family]  # the one before is interchangeable
        self.followers = [[new[on[g]] for g in after[path[-1]]] for path in self.paths]

    # -- one limit -----------------------------------------------------------------------------------------------

    def run(self, limit: float, *, shallowest: bool = False) -> Slicing | None:
        """Stages within ``limit`` on the devices there are, of least depth if ``shallowest``; ``None``: there are none.
        """
        full = tuple(len(path) for path in self.paths)
        nothing = (0,) * len(full)
        best: dict[Ideal, int] = {full: 0}
        frontier: dict[Ideal, int] = {full: 0}
        parents: list[dict[Ideal, tuple[Ideal, tuple[tuple[int, ...], ...]]]] = []
        packed: dict[tuple[tuple[tuple[int, int], ...], int], tuple[tuple[int, ...], ...] | None] = {}
        for depth in range(1, self.count + 1):
            in_flight = self.groups.problem.in_flight(depth)
            reached: dict[Ideal, int] = {}
            parent: dict[Ideal, tuple[Ideal, tuple[tuple[int, ...], ...]]] = {}
            for ideal, used in sorted(frontier.items(), key=lambda entry: entry[1]):
                for rest, pieces in self._cuts(ideal, limit, self.count - used):
                    self._count_step()
                    devices = used + self._least_stages(pieces, limit)
                    named = self._canonical(rest)
                    bar = min(best.get(named, self.count + 1), reached.get(named, self.count + 1))
                    if devices >= bar or devices + self._needed(rest, limit) > self.count:
                        continue
                    key = tuple((before, after) for before, after in zip(ideal, rest, strict=True)), in_flight
                    if key not in packed:
                        packed[key] = self._pack(pieces, limit, in_flight)
                    stages = packed[key]
                    if stages is None or used + len(stages) >= bar or (
                            used + len(stages) + self._needed(rest, limit) > self.count):
                        continue
                    reached[named] = used + len(stages)
                    parent[named] = ideal, stages
                    if named == nothing and not shallowest:
                        break
            parents.append(parent)
            best.update(reached)
            if nothing in reached:
                self.depth = depth
                return self._read(parents)
            frontier = reached
        return None

    def _cuts(self, ideal: Ideal, limit: float, devices: int) -> Iterator[tuple[Ideal, list[tuple[int, ...]]]]:
        """What is left of ``ideal``, and the pieces taken off its end, in all ways that keep to ``limit``."""
        room = limit * (1 if self.in_a_row else devices) * (1 + 1e-9)
        rest = list(ideal)
        piece_of: list[int] = [-1] * len(ideal)  # per path the first path that its taken part hangs together with
        loads: list[float] = [0.0] * len(ideal)

        def take(path: int, total: float) -> Iterator[tuple[Ideal, list[tuple[int, ...]]]]:
            if path == len(ideal):
                if total > 0 or any(rest[p] < ideal[p] for p in range(len(ideal))):
                    yield tuple(rest), self._pieces(ideal, rest, piece_of)
                return
            yield from take(path + 1, total)
            if any(rest[other] for other in self.followers[path]):
                return
            most = ideal[path]
            if self.twin[path] and ideal[path - 1] == ideal[path]:
                most = ideal[path - 1] - rest[path - 1]  # the twin before takes no less
            joined = sorted({piece_of[other] for other in self.followers[path] if ideal[other]})
            load = sum(loads[root] for root in joined)
            before = list(piece_of), list(loads)
            root = joined[0] if joined else path
            for p in range(path):
                if piece_of[p] in joined:
                    piece_of[p] = root
            piece_of[path] = root
            for taken in range(1, most + 1):
                more = self.left[path][ideal[path]] - self.left[path][ideal[path] - taken]
                if load + more > limit * (1 + 1e-9) or total + more > room:
                    break
                loads[root] = load + more
                rest[path] = ideal[path] - taken
                yield from take(path + 1, total + more)
            rest[path] = ideal[path]
            piece_of[:], loads[:] = before

        yield from take(0, 0.0)

    def _pieces(self, ideal: Ideal, rest: Sequence[int], piece_of: Sequence[int]) -> list[tuple[int, ...]]:
        found: dict[int, list[int]] = {}
        for path, (count, left) in enumerate(zip(ideal, rest, strict=True)):
            if left < count:
                root = -1 if self.in_a_row else piece_of[path]
                found.setdefault(root, []).extend(self.paths[path][left:count])
        return [tuple(groups) for groups in found.values()]

    def _least_stages(self, pieces: Sequence[tuple[int, ...]], limit: float) -> int:
        work = sum(self.times[group] for piece in pieces for group in piece)
        return max(1, math.ceil(work / limit * (1 - 1e-9))) if work else 1

    def _needed(self, ideal: Ideal, limit: float) -> int:
        """Stages that what is left needs at least."""
        work = sum(sums[count] for sums, count in zip(self.left, ideal, strict=True))
        least = math.ceil(work / limit * (1 - 1e-9)) if work else int(any(ideal))
        for time, counts in self.heavy:
            each = math.floor(limit / time * (1 + 1e-9))  # no stage holds more of those
            if each:
                least = max(least, -(-sum(sums[count] for sums, count in zip(counts, ideal, strict=True)) // each))
        return least

    def crowded(self) -> float:
        """Some device has its share of the groups that take at least as long as each."""
        return max((time * -(-sum(sums[-1] for sums in counts) // self.count) for time, counts in self.heavy),
                   default=0.0)

    def _canonical(self, ideal: Sequence[int]) -> Ideal:
        return tuple(count for family in self.families
                     for count in (sorted((ideal[p] for p in family), reverse=True) if len(family) > 1
                                   else (ideal[family.start],)))

    # -- a level -------------------------------------------------------------------------------------------------

    def _pack(self, pieces: Sequence[tuple[int, ...]], limit: float,
              in_flight: int) -> tuple[tuple[int, ...], ...] | None:
        """``pieces`` in as few stages as keep to the limit and the memory, or ``None`` where one alone does not."""
        if any(not self._fits(piece, limit, in_flight) for piece in pieces):
            return None
        if len(pieces) == 1:
            return (tuple(pieces[0]),)
        ordered = sorted(pieces, key=lambda piece: -sum(self.times[group] for group in piece))
        best: list[tuple[int, ...]] = list(ordered)
        least = self._least_stages(pieces, limit)

        def place(index: int, stages: list[tuple[int, ...]]) -> None:
            nonlocal best
            if len(stages) >= len(best) or len(best) == least:
                return
            if index == len(ordered):
                best = list(stages)
                return
            tried: set[object] = set()
            for i, stage in enumerate(stages):
                together = stage + ordered[index]
                alike = tuple(sorted((self.times[g], self.held[g], self.resident[g]) for g in stage))
                if alike not in tried and self._fits(together, limit, in_flight):
                    tried.add(alike)
                    place(index + 1, [*stages[:i], together, *stages[i + 1:]])
            if len(stages) + 1 < len(best):
                place(index + 1, [*stages, ordered[index]])

        place(0, [])
        return tuple(best)

    def _fits(self, stage: Sequence[int], limit: float, in_flight: int) -> bool:
        if self.memory is not None and sum(self.resident[g] + in_flight * self.held[g] for g in stage) > (
                self.memory * (1 + 1e-9)):
            return False
        return self.load(stage) <= limit * (1 + 1e-12)

    def load(self, stage: Sequence[int]) -> float:
        """The load of a stage of these groups."""
        inside = set(stage)
        cut = sum(self.groups.nets[i].cost for i in {i for group in stage for i in self.groups.nets_of[group]}
                  if not inside.issuperset(self.groups.nets[i].groups))
        return float(sum(self.times[group] for group in stage) + cut * self.factor)

    def _count_step(self) -> None:
        self.steps += 1
        if self.steps > self.max_steps:
            raise TooWide(f"more than {self.max_steps} cuts")
        if self.steps % 1000 == 0 and self.budget.spent:
            raise TooWide("the time is over")

    # -- the answer ----------------------------------------------------------------------------------------------

    def _read(self, parents: Sequence[dict[Ideal, tuple[Ideal, tuple[tuple[int, ...], ...]]]]) -> Slicing:
        """The stages, first to last. Ideals are named canonically, so paths are followed by their new names."""
        ideal: Ideal = (0,) * len(self.paths)
        found: list[tuple[int, ...]] = []
        steps: list[tuple[Ideal, tuple[tuple[int, ...], ...]]] = []
        for parent in reversed(parents):
            ideal, stages = parent[ideal]
            steps.append((ideal, stages))
        # Forwards from the whole graph: path p of a canonical ideal is really names[p].
        names = list(range(len(self.paths)))
        place = {group: (p, i) for p, path in enumerate(self.paths) for i, group in enumerate(path)}
        for ideal, stages in reversed(steps):
            taken = [0] * len(self.paths)
            real = []
            for stage in stages:
                real.append(tuple(self.paths[names[place[g][0]]][place[g][1]] for g in stage))
                for group in stage:
                    taken[place[group][0]] += 1
            found[:0] = real
            rest = [count - gone for count, gone in zip(ideal, taken, strict=True)]
            moved = list(names)
            for family in self.families:
                ranked = sorted(family, key=lambda p: -rest[p])
                for p, old in zip(family, ranked, strict=True):
                    moved[p] = names[old]
            names = moved
        parts = tuple((self.kind, tuple(sorted(stage))) for stage in found)
        return Slicing(max(self.load(stage) for _, stage in parts), parts)
