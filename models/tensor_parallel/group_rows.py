"""Rows of layers on groups of GPUs with several chunks a group, in a loop or a V.

Several chunks shorten the ramp of a step: a group waits for one chunk of each earlier group, not for all their layers.
They cost memory (a loop) or save it (a V). For every given division of the GPUs into groups, and every number of
chunks, the layers are cut by moves: starting from loads by the sizes of the groups, a layer moves from one stage to
another, and the stages between them shift by one, as long as less memory is missing or the largest load, or the next
ones, become smaller. Layers of a model are mostly alike, so one such move changes two groups. A stage is charged for
the micro-batches of the known schedule of its row, or for those that must be in flight while the groups are busy. The
rows with the least estimated steps are kept.

Two chunks of a chain of layers on each group of GPUs, down the groups and back up (V) or twice down (loop).

:mod:`weft.models.candidates.stage_split` cuts the layers not on all GPUs onto groups of equal size, as it cuts a chain
onto single GPUs: exactly, under each GPU's memory, once with room for the micro-batches of 1F1B and once for one. The
size of the groups is the one with the shortest step for an arbitrarily divisible row.

The division of GPUs into groups of two sizes for which whole layers leave the least idle time.

With groups of one size each group often lacks capacity for part of a layer: 80 layers on 16 groups of four are five on
each, and the head is too much. Some groups of another size take the rest. For each pair of sizes the least time of a
micro-batch is found for which groups of these sizes can have all layers (without regard to order, as in
:mod:`weft.models.tensor_parallel.bound.group_cover`), and for that time the division with the fewest groups: each
additional group keeps another micro-batch in flight.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from weft.models.candidates.stage_split import NoSplit, StageSplit, split_layers
from weft.models.candidates.stages import Backward, MemoryRule, stage_device
from weft.models.tensor_parallel.bound.group_cover import GroupCover, LayerTerms
from weft.models.tensor_parallel.group_split import StageTables
from weft.models.tensor_parallel.parts import LayersPart
from weft.models.tensor_parallel.space import Space
from weft.solver.control.clock import checkpoint

#: Maximum chunks a group.
MOST_CHUNKS = 8
#: Number of rows of one kind (loops, Vs) kept.
_KEPT = 2
#: Maximum moves of a layer for each stage of a cut.
_MOVES = 4
#: If an even cut lacks more than this share of all memory, no moves are tried.
_HOPELESS = 0.25
_Ints = NDArray[np.int64]
_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class GroupRow:
    """Stage s is layers ``cuts[s]`` to ``cuts[s + 1] - 1``; ``degrees``: the GPUs of each group; ``load``: nanoseconds
    of the busiest group for a micro-batch, ``step``: the estimated nanoseconds of a step."""

    kind: Chunks
    chunks: int
    degrees: tuple[int, ...]
    cuts: tuple[int, ...]
    load: int
    step: int


def group_of_stage(kind: Chunks, groups: int, chunks: int) -> list[int]:
    """The group of each stage: round-robin, or (``v``) down and back up."""
    down = list(range(groups))
    return [group for chunk in range(chunks) for group in (down[::-1] if kind == "v" and chunk % 2 else down)]


def best_rows(space: Space, kinds: Sequence[Chunks], backward: Backward, divisions: Sequence[tuple[int, ...]] = (),
              most: float = np.inf) -> list[GroupRow]:
    """For each of ``kinds`` the rows of the least estimated step, over all numbers of chunks, for groups of equal size
    and other ``divisions`` of the GPUs; none with a step of more than ``most`` nanoseconds."""
    count = len(space.layers)
    equal = [(degree,) * (space.gpus // degree) for degree in space.degrees if space.gpus % degree == 0]
    tables = {degree: StageTables.of(space.costs[degree], space.bytes_per_parameter, backward)
              for degree in space.degrees}
    found: list[GroupRow] = []
    for kind in kinds:
        rows: list[GroupRow] = []
        for degrees in dict.fromkeys([*equal, *divisions]):
            groups = len(degrees)
            shares = [tables[degree].load[0, count] * degree / space.gpus for degree in set(degrees)]
            if 2 <= groups <= count // 2 and min(shares) * space.micro_batches <= most:
                numbers = (2,) if kind == "v" else range(2, min(MOST_CHUNKS, count // groups) + 1)
                for chunks in numbers:
                    rows += _rows(space, tables, kind, chunks, degrees, backward)
        found += sorted((row for row in set(rows) if row.step <= most), key=lambda row: (row.step, row.chunks))[:_KEPT]
    return found


def _rows(space: Space, tables: dict[int, StageTables], kind: Chunks, chunks: int, degrees: tuple[int, ...],
          backward: Backward) -> Iterator[GroupRow]:
    """The cuts that fit with room for the known schedule, and with room for the required micro-batches in flight."""
    groups = len(degrees)
    where = group_of_stage(kind, groups, chunks)
    for is_known, held in _in_flight(kind, groups, chunks, space.micro_batches, backward):
        cut = cut_row([tables[degrees[group]] for group in where], where, held, space.capacity)
        if cut is not None:
            cuts, load = cut
            # Weight gradients fill half of a V's idle time; if no known schedule fits, the schedule is open.
            ramp = (groups - 1) * load / ((4 if kind == "v" and backward == "split" else chunks) if is_known else 1)
            yield GroupRow(kind, chunks, degrees, cuts, load, int(space.micro_batches * load + ramp))


def _in_flight(kind: Chunks, groups: int, chunks: int, micro_batches: int, backward: Backward) -> Iterator[
        tuple[bool, list[int]]]:
    """By stage, the micro-batches kept: by the known schedule (``True``), and by any that keeps the groups busy."""
    stages = groups * chunks
    if backward == "none":
        yield True, [1] * stages
        return
    if kind == "v":
        yield True, [min(micro_batches, stages - s) for s in range(stages)]
    else:
        ahead = [(chunks - 1) * groups + 2 * (groups - 1 - rank) + 1 for rank in range(groups)]
        # The first forwards of a group go through each chunk p at a time.
        yield True, [min(micro_batches, sum(min(groups, max(0, ahead[s % groups] - turn * groups))
                                            for turn in range(s // groups, 2 * chunks, chunks))) for s in range(stages)]
    if kind == "v":  # the search over building blocks has schedules for less; loops of unequal stages fare badly there
        yield False, [min(micro_batches, 1 + -(-(stages - s) // chunks)) for s in range(stages)]


def cut_row(tables: Sequence[StageTables], where: Sequence[int], held: Sequence[int],
            room: int) -> tuple[tuple[int, ...], int] | None:
    """Cut layers into ``len(where)`` stages, stage s at the costs of ``tables[s]`` on group ``where[s]`` with
    ``held[s]`` micro-batches in flight: returns a cut with a small largest load of a group among those within ``room``
    bytes, and that load in nanoseconds; ``None`` if none was found."""
    row = _RowMeasures(tables, where, held, room)
    if row.count < len(where):
        return None
    cuts = row.even()
    best = row.scores(cuts[None])[0]
    if best[0] > _HOPELESS * room * (max(where) + 1):
        return None
    for _ in range(_MOVES * len(where)):
        checkpoint()
        moved = row.moves(cuts)
        if not len(moved):
            break
        scores = row.scores(moved)
        place = np.lexsort(scores.T[::-1])[0]  # the last key has priority
        if tuple(scores[place]) >= tuple(best):
            break
        cuts, best = moved[place], scores[place]
    return (tuple(cuts.tolist()), round(float(best[1]))) if best[0] <= 0 else None


class _RowMeasures:
    """Measures of the cuts of a row."""

    def __init__(self, tables: Sequence[StageTables], where: Sequence[int], held: Sequence[int], room: int) -> None:
        self.where, self.room = where, room
        self.held = np.array(held, dtype=np.float64)
        kinds = list(dict.fromkeys(tables))
        self.kind = np.array([kinds.index(table) for table in tables])
        self.load, self.static, self.workspace, self.each = (np.stack([getattr(kind, name) for kind in kinds])
                                                             for name in ("load", "static", "workspace", "each"))
        self.count = self.load.shape[1] - 1
        self.on = np.zeros((len(where), max(where) + 1))
        self.on[np.arange(len(where)), where] = 1
        self.by_group = np.argsort(where, kind="stable")
        self.starts = np.searchsorted(np.array(where)[self.by_group], np.arange(max(where) + 1))
        # By giver and taker, the change of each stage's ends by a move of one layer.
        a, b, i = np.ogrid[:len(where), :len(where), :len(where) + 1]
        self.shifts = ((b < i) & (i <= a)).astype(np.int64) - ((a < i) & (i <= b))

    def measures(self, cuts: _Ints) -> tuple[_Floats, _Floats]:
        """Loads, and bytes that are missing, by cut and group."""
        at = (self.kind, cuts[:, :-1], cuts[:, 1:])
        need = (self.static[at] + self.held * self.each[at]) @ self.on
        workspace = np.maximum.reduceat(self.workspace[at][:, self.by_group], self.starts, axis=1)
        return self.load[at] @ self.on, np.maximum(need + workspace - self.room, 0)

    def scores(self, cuts: _Ints) -> _Floats:
        """By cut: missing bytes, the largest load, and the imbalance of the loads of groups and of stages."""
        loads, missing = self.measures(cuts)
        stages = self.load[self.kind, cuts[:, :-1], cuts[:, 1:]]
        return np.stack([missing.sum(axis=1), loads.max(axis=1), (loads**2).sum(axis=1), (stages**2).sum(axis=1)],
                        axis=1)

    def moves(self, cuts: _Ints) -> _Ints:
        """The cuts after moving one layer to another stage from a stage on a group that lacks memory; if none does, on
        one with the largest load."""
        loads, missing = (found[0] for found in self.measures(cuts[None]))
        groups = missing > 0 if missing.any() else loads >= loads.max()
        givers = np.flatnonzero(groups[np.array(self.where)] & (np.diff(cuts) > 1))
        found: _Ints = (cuts + self.shifts[givers]).reshape(-1, len(cuts))
        return found

    def even(self) -> _Ints:
        """A cut with about equal loads of groups, at least a layer a stage: all layers at the costs of the last stage,
        and stages weighted by their speed."""
        before = self.load[self.kind[-1], 0]
        speed = 1 / self.load[self.kind, 0, -1]
        return _even(before, np.concatenate(([0.0], np.cumsum(speed) / speed.sum())))


def _even(before: _Floats, shares: _Floats) -> _Ints:
    """A cut at these shares of all load, a layer a stage at least; ``before``: the loads up to each layer."""
    count, stages = len(before) - 1, len(shares) - 1
    cuts = np.searchsorted(before, before[-1] * shares - before[-1] / count / 2)
    cuts[0], cuts[-1] = 0, count
    for s in range(1, stages):
        cuts[s] = max(cuts[s], cuts[s - 1] + 1)
    for s in reversed(range(1, stages)):
        cuts[s] = min(cuts[s], cuts[s + 1] - 1)
    found: _Ints = cuts.astype(np.int64)
    return found


#: The placement of the second chunks on the groups.
Chunks: TypeAlias = Literal["v", "loop"]
CHUNKS: tuple[Chunks, ...] = get_args(Chunks)


def chunked(space: Space, layers: Sequence[int], chunks: Chunks, backward: Backward, room: int) -> Iterator[
        tuple[LayersPart, ...]]:
    """The parts of ``layers`` (by index) in two chunks a group of GPUs, for every distinct split; none if nothing fits
    into ``room`` bytes of each GPU. Parts are named by their position in the chain."""
    degree = _best_degree(space, layers)
    if degree is None or room <= 0:
        return
    groups = space.gpus // degree
    costs = [space.costs[degree][i] for i in layers]
    found: list[StageSplit] = []
    for roomy in (False, True) if backward != "none" else (False,):
        held = [min(2 * groups - s, space.micro_batches) if roomy else 1 for s in range(2 * groups)]
        try:
            found.append(split_layers(chunks, costs, [room] * groups, held,
                                      MemoryRule(backward, space.bytes_per_parameter), borders=_gaps(layers),
                                      least_load=max(found[0].loads) if found else 0.0))
        except NoSplit:
            break
    for cuts in dict.fromkeys(split.cuts for split in found):
        yield tuple(space.part(str(number), layers[first:last], range(d * degree, (d + 1) * degree))
                    for number, ((first, last), d) in enumerate(zip(pairwise(cuts), stage_device(chunks, groups),
                                                                    strict=True)))


def _best_degree(space: Space, layers: Sequence[int]) -> int | None:
    """GPUs of a group for the least step time of arbitrarily divisible stages; ``None`` if there are too few layers or
    GPUs for two chunks each."""
    def step(degree: int) -> float:
        groups = space.gpus // degree
        load = sum(space.costs[degree][i].forward + space.costs[degree][i].backward for i in layers) / groups
        return load * (space.micro_batches + (groups - 1) / 2)

    possible = [degree for degree in space.degrees if space.gpus % degree == 0 and space.gpus > degree
                and len(_gaps(layers)) < 2 * space.gpus // degree <= len(layers)]
    return min(possible, key=step, default=None)


def _gaps(layers: Sequence[int]) -> list[int]:
    """Positions in ``layers`` that do not follow the previous one directly."""
    return [place for place in range(1, len(layers)) if layers[place] != layers[place - 1] + 1]


#: The relative precision of the least time.
_CLOSE = 1 / 2048
_Load = tuple[int, ...]


def divisions(terms: LayerTerms, gpus: int, capacity: int, most: float) -> list[tuple[int, ...]]:
    """The GPUs of each group, larger groups first, for every pair of sizes with which a micro-batch takes at most
    ``most`` nanoseconds of any group."""
    cover = GroupCover(terms, gpus, capacity, 1, fills=False)
    longest = min(most, int(terms.load.max(axis=1).sum()))  # of one group that has all layers
    found = []
    for small, large in itertools.combinations((degree for degree in terms.degrees if degree < gpus), 2):
        low, high = 0, int(longest)
        best = _fewest(cover, small, large, high)
        while best is not None and high - low > _CLOSE * high:
            middle = (low + high) // 2
            shorter = _fewest(cover, small, large, middle)
            low, high, best = (middle, high, best) if shorter is None else (low, middle, shorter)
        if best is not None:
            found.append(best)
    return found


def _fewest(cover: GroupCover, small: int, large: int, most: int) -> tuple[int, ...] | None:
    """The division with the fewest groups that can have all layers in ``most`` nanoseconds, with both sizes."""
    some = {degree: _together(cover, degree, most) for degree in (small, large)}
    for number in range((cover.gpus - 1) // large, 0, -1):
        checkpoint()
        rest, odd = divmod(cover.gpus - number * large, small)
        if not odd and any(all(a + b >= count for a, b, count in zip(one, other, cover.counts, strict=True))
                           for one in some[large][number] for other in some[small][rest]):
            return (large,) * number + (small,) * rest
    return None


def _together(cover: GroupCover, degree: int, most: int) -> list[Sequence[_Load]]:
    """By number of groups of ``degree`` GPUs: the largest numbers of layers by kind that they can have."""
    loads = cover.loads(degree, most)
    found: list[Sequence[_Load]] = [[(0,) * len(cover.counts)]]
    for _ in range(cover.gpus // degree):
        sums = {tuple(min(count, a + b) for count, a, b in zip(cover.counts, had, more, strict=True))
                for had in found[-1] for more in loads} or set(found[-1])
        found.append([one for one in sums if not any(
            other != one and all(a >= b for a, b in zip(other, one, strict=True)) for other in sums)])
    return found
