"""The candidates of a search on a V: published orders and the stable patterns that fit, with the problem's own
times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from weft.solver.baselines.lib.base import Row
from weft.solver.baselines.lib.building_block import Built, StepChain
from weft.solver.baselines.lib.stable_pattern import (
    B_DOWN,
    B_UP,
    F_DOWN,
    F_UP,
    INTERVAL,
    W_DOWN,
    StablePattern,
    stable_patterns,
)
from weft.solver.baselines.rivals.reordering import reordered
from weft.solver.baselines.rivals.weights_anew import WEIGHT, Rule, in_order, without_micro_batches

#: The number of patterns and counts of micro-batches whose rows are cached.
_KEPT = 64


@dataclass(frozen=True, slots=True)
class LaidOut:
    """Number ``number`` of :class:`LaidOutOrders`, its weight gradients placed by ``rule``."""

    number: int
    rule: Rule = Rule.IN_TIME

    def neighbours(self, count: int) -> Iterator[LaidOut]:
        """The same with other rules, then those beside it of ``count``."""
        for rule in Rule:
            if rule is not self.rule:
                yield replace(self, rule=rule)
        for step in (1, -1, 2, -2):
            if 0 <= self.number + step < count:
                yield replace(self, number=self.number + step)


class LaidOutOrders:
    """The laid-out orders for ``chain``, a V with split backwards, in memory ``room``; ``count`` in all.

    First the published orders ``known`` (they make so many micro-batches). Then stable patterns: those that fit when
    repeated forever, by their memory, most first; for fewer micro-batches than two a device then the others, which may
    never need so much. If only the published ones can be tried (``at_first``) there are no patterns.
    """

    def __init__(self, chain: StepChain, micro_batches: int, room: Sequence[int],
                 known: Sequence[Callable[[int], list[Row]]], at_first: int) -> None:
        self.chain, self.published, self.at_first = chain, known[:at_first], at_first
        self.patterns = self._fitting(micro_batches, room) if at_first > len(known) else []
        self.count = len(self.published) + len(self.patterns)
        self._rows: dict[tuple[int, int], list[list[int]] | None] = {}

    def _fitting(self, micro_batches: int, room: Sequence[int]) -> list[StablePattern]:
        chain = self.chain
        patterns, slots = _known(len(chain.room))
        need = self._need(slots)
        fits = (need <= np.array(room, dtype=np.float64) * (1 + 1e-12)).all(axis=1)
        held = need.sum(axis=1)
        ranked = sorted(np.flatnonzero(fits), key=lambda k: (-patterns[k].peak, -held[k], patterns[k].slots))
        if micro_batches < 2 * len(chain.room):
            ranked += sorted(np.flatnonzero(~fits), key=lambda k: (patterns[k].peak, held[k], patterns[k].slots))
        return [patterns[k] for k in ranked]

    def first(self) -> Iterator[LaidOut]:
        """Those to try first, ``at_first`` at most: the published ones, then a spread over the patterns."""
        published = len(self.published)
        for k in range(min(self.at_first, self.count)):
            spread = published + int(len(self.patterns) * ((k - published) / self.at_first) ** 2)
            yield LaidOut(k if k < published else min(spread, self.count - 1))

    def _need(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Per pattern and device the most memory that it takes when repeated forever."""
        chain, p = self.chain, len(self.chain.room)
        change, take = np.zeros((p, 6)), np.zeros((p, 6))
        for d in range(p):
            for kind, step in enumerate(_steps(p, d)):
                change[d, kind], take[d, kind] = chain.change[step], chain.take[step]
                if kind >= B_DOWN and chain.filler[step] >= 0:
                    change[d, kind + 2], take[d, kind + 2] = chain.filler_change[step], chain.filler_take[step]
        before = np.floor((slots[:, :, :, None] - slots[:, :, None, :] - 1) / INTERVAL) + 1  # of the last axis, by then
        level = (before * change[None, :, None, :]).sum(axis=3)
        most: npt.NDArray[np.float64] = (level + take[None]).max(axis=2)
        return most

    def run(self, laid: LaidOut, micro_batches: int, room: Sequence[int]) -> Built | None:
        """A pass of ``laid``; None if it does not fit."""
        rows = self.rows(laid.number, micro_batches)
        return None if rows is None else in_order(self.chain, rows, micro_batches, laid.rule, room)

    def is_laid(self, laid: LaidOut, micro_batches: int) -> bool:
        """Whether the rows of its pattern are cached."""
        return (laid.number, micro_batches) in self._rows

    def rows(self, number: int, micro_batches: int) -> list[list[int]] | None:
        """The rows of steps of one of them, None if the rules of its pattern fail."""
        key = number, micro_batches
        if key not in self._rows:
            if len(self._rows) >= _KEPT:
                del self._rows[next(iter(self._rows))]
            own = number - len(self.published)
            self._rows[key] = (self._laid(self.patterns[own], micro_batches) if own >= 0 else
                               without_micro_batches(self.chain, self.published[number](micro_batches)))
        return self._rows[key]

    def _laid(self, pattern: StablePattern, micro_batches: int) -> list[list[int]] | None:
        kinds = reordered(pattern, micro_batches, pattern.peak)
        if kinds is None:
            return None
        p = len(kinds)
        return [self._row(row, _steps(p, d)) for d, row in enumerate(kinds)]

    def _row(self, kinds: Sequence[int], steps: Sequence[int]) -> list[int]:
        """Steps in place of kinds; a stage without a separate weight gradient has none."""
        is_filled = [self.chain.filler[steps[kind]] >= 0 for kind in (B_DOWN, B_UP)]
        return [steps[kind] if kind < W_DOWN else WEIGHT for kind in kinds if kind < W_DOWN or is_filled[kind - W_DOWN]]


def _steps(p: int, d: int) -> tuple[int, int, int, int]:
    """The steps of the chain on device ``d`` of ``p``, by kind."""
    steps = {F_DOWN: d, F_UP: 2 * p - 1 - d, B_DOWN: 2 * p + d, B_UP: 4 * p - 1 - d}
    return steps[F_DOWN], steps[F_UP], steps[B_DOWN], steps[B_UP]


@lru_cache(maxsize=8)
def _known(devices: int) -> tuple[tuple[StablePattern, ...], npt.NDArray[np.int64]]:
    """All stable patterns of a V on so many devices, and their slots: an array of patterns, devices and kinds."""
    patterns = tuple(stable_patterns(devices))
    return patterns, np.array([pattern.slots for pattern in patterns], dtype=np.int64)
