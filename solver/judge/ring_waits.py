"""The steady state that a schedule states, derived from its operations: a part of the judge.

No code that makes schedules is used here (:mod:`weft.solver.judge`). The row of every device is searched for the
*stretches* that can be one period: each block ``q`` times, repeated ``count`` times, ``q`` micro-batches further each
time. A stretch that repeats forever determines which instance follows which on its device and on the links that begin
there. With the dependencies these are waits, "the target starts no sooner than weight after the source, whose instance
is height periods earlier", and no period is shorter than weight / height of any cycle of waits; the greatest of these
is the period (Reiter, "Scheduling parallel computations", 1968). It is searched for from below: longest paths over the
waits less height x period, from the times in the schedule on, until no cycle is left that makes them grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from weft.solver.problem import Number, Problem
from weft.solver.schedule import Operation

_Whole: TypeAlias = npt.NDArray[np.int64]
#: One period of a device: ``(block, micro-batch)`` in the order in which they run.
Ring: TypeAlias = tuple[tuple[int, int], ...]

#: With more different stretches than this, the statements on them stay open.
_MOST_RINGS = 16
#: Longest paths that grow by less than this share of a period are rounding.
_NOISE = 1e-12


@dataclass(frozen=True)
class Stretches:
    """Where one device's row can begin the stated ``count`` periods, by rising place.

    ``begins`` are places in the row, ``repeats`` how many periods follow one another from there on, ``tops`` the
    largest turn (micro-batch // q) in the first of them. ``most`` is the largest number of periods from any place.
    """

    row: Sequence[Operation]
    length: int
    q: int
    begins: _Whole
    repeats: _Whole
    tops: _Whole
    most: int
    same: npt.NDArray[np.bool_]

    def rings(self, first: int) -> list[Ring] | None:
        """The different orders that a period of number ``first`` may have; None if there are too many."""
        found: dict[frozenset[tuple[int, int, int, int, int]], Ring] = {}
        before = -2
        for begin in self.begins[self.tops <= first].tolist():
            # One place further with the same number of repeats is the same order, begun elsewhere.
            if begin != before + 1 or not self.same[before]:
                ring = tuple((o.block, o.micro_batch) for o in self.row[begin:begin + self.length])
                found.setdefault(_followers(ring, self.q), ring)
                if len(found) > _MOST_RINGS:
                    return None
            before = begin
        return list(found.values())

    def longest(self, first: int) -> tuple[int, int]:
        """The most periods from a place of turn ``first`` or less, and from one of exactly that turn; 0 for none."""
        at_most, exactly = self.repeats[self.tops <= first], self.repeats[self.tops == first]
        return int(at_most.max(initial=0)), int(exactly.max(initial=0))


def stretches(row: Sequence[Operation], blocks: int, q: int, count: int) -> Stretches:
    """Where ``row``, the operations of a device that runs ``blocks`` blocks, can begin ``count`` periods of ``q``
    micro-batches."""
    length, size = blocks * q, len(row)
    none = np.zeros(0, dtype=np.int64)
    if not length or length > size:
        return Stretches(row, length, q, none, none, none, 0, np.zeros(0, dtype=bool))
    block = np.fromiter((o.block for o in row), dtype=np.int64, count=size)
    micro_batch = np.fromiter((o.micro_batch for o in row), dtype=np.int64, count=size)

    same = np.zeros(size, dtype=bool)
    same[:size - length] = ((block[:size - length] == block[length:])
                            & (micro_batch[length:] - micro_batch[:size - length] == q))
    breaks = np.where(same, size, np.arange(size))
    run = np.minimum.accumulate(breaks[::-1])[::-1] - np.arange(size)

    # No block occurs there more than q times, so each occurs q times: the q-th next of each is further on.
    by_block = np.argsort(block, kind="stable")
    following = np.full(size, size, dtype=np.int64)
    again = block[by_block[q:]] == block[by_block[:-q]]
    following[by_block[:-q][again]] = by_block[q:][again]
    places = np.arange(size - length + 1)
    is_whole = -_sliding_maximum(-following, length) >= places + length

    repeats = np.where(is_whole, 1 + run[:places.size] // length, 0)
    tops = _sliding_maximum(micro_batch // q, length)
    kept = repeats >= count
    return Stretches(row, length, q, places[kept], repeats[kept], tops[kept], int(repeats.max()), same)


def _sliding_maximum(values: _Whole, width: int) -> _Whole:
    """The maximum of every ``width`` neighbours, by running maxima from both ends of chunks of that width."""
    padded = np.full(-(-values.size // width) * width, np.iinfo(np.int64).min)
    padded[:values.size] = values
    chunks = padded.reshape(-1, width)
    ahead = np.maximum.accumulate(chunks, axis=1).ravel()
    behind = np.maximum.accumulate(chunks[:, ::-1], axis=1)[:, ::-1].ravel()
    last = values.size - width + 1
    return np.maximum(behind[:last], ahead[width - 1:width - 1 + last])


def _followers(ring: Ring, q: int) -> frozenset[tuple[int, int, int, int, int]]:
    """Which instance follows which: the same from any place on the ring."""
    return frozenset((i, m % q, j, n % q, n // q - m // q) for (i, m), (j, n) in _neighbours(ring, q))


def _neighbours(ring: Ring, q: int) -> Iterable[tuple[tuple[int, int], tuple[int, int]]]:
    block, micro_batch = ring[0]
    return zip(ring, (*ring[1:], (block, micro_batch + q)), strict=True)


# -- waits -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RingWaits:
    """``start[target] >= start[source] + weight - height x period``, an entry each; sorted by target.

    Every node is the target of some wait. ``guess`` is a start for each node in the period of turn 0, except for whole
    periods: ``turn`` is the number of these.
    """

    source: _Whole
    target: _Whole
    weight: npt.NDArray[np.float64]
    height: _Whole
    exact: tuple[Number, ...]
    guess: npt.NDArray[np.float64]
    turn: _Whole


def waits_of(problem: Problem, rings: Sequence[Ring], q: int, starts: dict[tuple[int, int], float]) -> RingWaits:
    """The waits if every device repeats its ring of ``q`` micro-batches forever.

    ``rings`` has one for each device, empty for a device without blocks; ``starts`` has the time of every operation of
    a ring.
    """
    blocks = problem.blocks
    source: list[int] = []
    target: list[int] = []
    exact: list[Number] = []
    height: list[int] = []

    def wait(one: int, other: int, weight: Number, periods: int) -> None:
        source.append(one)
        target.append(other)
        exact.append(weight)
        height.append(periods)

    guess, turn = [0.0] * (len(blocks) * q), [0] * (len(blocks) * q)
    for ring in rings:
        for (i, m), (j, n) in _neighbours(ring, q) if ring else ():
            wait(i * q + m % q, j * q + n % q, blocks[i].duration, n // q - m // q)
            guess[i * q + m % q], turn[i * q + m % q] = starts[i, m], m // q
    sent: dict[str, list[tuple[int, int, Number]]] = {}  # by link: producer, transfer's first node, lag
    for consumer, block in enumerate(blocks):
        for dependency in block.after:
            producer, lag = problem.index[dependency.block], dependency.lag
            duration = blocks[producer].duration
            transfer = len(guess)
            for r in range(q):
                periods, residue = divmod(r + dependency.distance, q)
                if dependency.link is None:
                    wait(producer * q + r, consumer * q + residue, float(_sum(duration, lag)), periods)
                    continue
                wait(producer * q + r, transfer + r, duration, 0)
                wait(transfer + r, consumer * q + residue, lag, periods)
                guess.append(guess[producer * q + r] + duration)
                turn.append(turn[producer * q + r])
            if dependency.link is not None:
                sent.setdefault(dependency.link, []).append((producer, transfer, lag))
    sources = {link.name: link.source for link in problem.links}
    for link, transfers in sent.items():
        # One at a time, in the order of their producers on the link's source, several of one producer in file order.
        ring = rings[sources[link]]
        by_producer: dict[int, list[tuple[int, Number]]] = {}
        for producer, transfer, lag in transfers:
            by_producer.setdefault(producer, []).append((transfer, lag))
        queue = [(transfer + m % q, lag, m // q) for i, m in ring for transfer, lag in by_producer.get(i, ())]
        following = [*queue[1:], *((transfer, lag, turn + 1) for transfer, lag, turn in queue[:1])]
        for (one, lag, k), (other, _, n) in zip(queue, following, strict=True):
            wait(one, other, lag, n - k)
    order = np.argsort(np.asarray(target), kind="stable")
    return RingWaits(np.asarray(source)[order], np.asarray(target)[order],
                     np.asarray(exact, dtype=np.float64)[order], np.asarray(height)[order],
                     tuple(exact[place] for place in order), np.asarray(guess), np.asarray(turn))


def greatest_ratio(waits: RingWaits, least: float) -> float | None:
    """The greatest weight / height of a cycle of waits: the period; ``least`` if none is above it.

    None if the waits contradict each other for every period: a cycle of height zero.
    """
    period = least
    while (circle := _growing_circle(waits, period)) is not None:
        weight = float(sum((_exact(waits.exact[place]) for place in circle), Fraction(0)))
        height = int(waits.height[circle].sum())
        if height <= 0:
            return None
        if weight / height <= period:
            return period
        period = weight / height
    return period


def _growing_circle(waits: RingWaits, period: float) -> list[int] | None:
    """A cycle of waits (places in ``waits``) that is too long for ``period``, or None.

    Longest paths by rounds over all waits at once. As long as a cycle grows, so does the path along it, and the cycle
    appears among the waits by which nodes were reached last.
    """
    weight = waits.weight - waits.height * period
    start = waits.guess - waits.turn * period
    begins = np.flatnonzero(np.diff(waits.target, prepend=-1))
    sizes = np.diff(np.append(begins, waits.target.size))
    nodes = waits.target[begins]
    reached = np.full(start.size, -1, dtype=np.int64)
    noise = _NOISE * max(period, float(np.abs(waits.weight).max()))
    rounds = 0
    while True:
        path = start[waits.source] + weight
        best = np.maximum.reduceat(path, begins)
        grown = best > start[nodes] + noise
        if not grown.any():
            return None
        is_best = np.flatnonzero(path == np.repeat(best, sizes))
        _, where = np.unique(waits.target[is_best], return_index=True)
        reached[nodes[grown]] = is_best[where][grown]
        start[nodes[grown]] = best[grown]
        rounds += 1
        if rounds & (rounds - 1) == 0 or rounds % 64 == 0:
            circle = _circle(waits, reached)
            if circle is not None:
                return circle


def _circle(waits: RingWaits, reached: _Whole) -> list[int] | None:
    """A cycle among the waits by which nodes were reached, if there is one."""
    came_from = [int(waits.source[place]) if place >= 0 else -1 for place in reached.tolist()]
    seen = [0] * len(came_from)
    for begin in range(len(came_from)):
        node = begin
        while node >= 0 and not seen[node]:
            seen[node] = begin + 1
            node = came_from[node]
        if node >= 0 and seen[node] == begin + 1:
            circle, last = [int(reached[node])], came_from[node]
            while last != node:
                circle.append(int(reached[last]))
                last = came_from[last]
            return circle
    return None


def _sum(one: Number, other: Number) -> Fraction:
    return _exact(one) + _exact(other)


def _exact(value: Number) -> Fraction:
    """The decimal number as written: 0.1 is one tenth."""
    return Fraction(value) if isinstance(value, int) else Fraction(repr(float(value)))
