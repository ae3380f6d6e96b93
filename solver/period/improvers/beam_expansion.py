"""The blocks of one device, placed at random in many partial periodic schedules at once.

What a partial schedule says of a block is a window for its start. With the lags that hold for every schedule of the
period these are difference constraints over the device's few blocks and the origin of time, a small matrix for each
candidate, kept closed under longest paths. Two blocks i, j of a device never overlap in any period if t_j - t_i lies in
[d_i + K T, (K + 1) T - d_j] for some whole K: a candidate decides K pair after pair, mostly the one nearest to where
the two aim, and what it has decided moves the others. Then starts are fixed block after block.

A block aims to be as early as it can be where a block before it is placed already, as late where one after it is:
either way the least is lost of what the blocks in between can still wait. Some may stray from there: a pattern that
costs a wait now may save more on devices to come.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from weft.solver.period.params import PARAMETERS
from weft.solver.relations.min_dist import Distances
from weft.solver.ticks import TickProblem

__all__ = ["EARLY", "FREE", "LATE", "fits", "place"]

Starts = npt.NDArray[np.int64]

#: Where a block aims in its window: as early, as late as possible, or anywhere.
EARLY, LATE, FREE = 0, 1, 2


def place(instance: TickProblem, period: int, lags: Distances, blocks: Sequence[int], wishes: Sequence[int],
          windows: tuple[Starts, Starts], draw: np.random.Generator, *,
          stray: bool = False) -> tuple[npt.NDArray[np.intp], Starts]:
    """Starts of ``blocks``, all of one device, in ``windows``: the earliest and the latest starts (ticks).

    ``lags`` are the least distances at ``period``, of all blocks; ``wishes`` says for each of ``blocks`` where it aims,
    from where some of them ``stray``. A row is a candidate; rows may be equal: each gets random
    choices of its own. Returns the rows in
    which the choices left room for all blocks, and for each the starts (rows x blocks); memory is not looked at.
    """
    candidates = _Candidates(lags[np.ix_(blocks, blocks)], *windows, wishes, period, draw, stray)
    durations = [instance.durations[i] for i in blocks]
    pairs = [(i, j) for i in range(len(blocks)) for j in range(i + 1, len(blocks))]
    draw.shuffle(pairs)
    for i, j in sorted(pairs, key=lambda pair: sum(wishes[i] == FREE for i in pair)):
        candidates.part(i, j, durations[i], durations[j])
    candidates.drop()
    candidates.fix()
    candidates.drop()
    return candidates.rows, candidates.gaps[-1, :-1].T


def fits(instance: TickProblem, period: int, device: int, blocks: Sequence[int],
         starts: Starts) -> npt.NDArray[np.bool_]:
    """Whether the device's memory holds the steady state, for each row of ``starts`` (rows x blocks)."""
    capacity = instance.capacity[device]
    good = np.ones(len(starts), dtype=np.bool_)
    if capacity is None:
        return good
    take, change = instance.take[device], instance.change[device]
    for j, taker in enumerate(blocks):
        level = np.full(len(starts), take[taker], dtype=np.int64)
        for i, other in enumerate(blocks):
            if i != j and change[other]:
                level += change[other] * ((starts[:, j] - starts[:, i]) // period + 1)
        good &= level <= capacity
    return good


class _Candidates:
    """``gaps[i, j, c]``: what lies at least between the starts of i and j in candidate c; last comes the origin."""

    def __init__(self, lags: Distances, earliest: Starts, latest: Starts, wishes: Sequence[int], period: int,
                 draw: np.random.Generator, stray: bool) -> None:
        count, blocks = earliest.shape
        self.period = period
        self.rows = np.arange(count)
        self.gaps = np.zeros((blocks + 1, blocks + 1, count), dtype=np.int64)
        self.gaps[:-1, :-1] = lags[:, :, None]
        self.gaps[-1, :-1] = earliest.T
        self.gaps[:-1, -1] = -latest.T
        self._wishes = wishes
        self._draw = draw
        # Mostly near, because memory waits; far where nothing says yet where anything is.
        reach = PARAMETERS.beam_first_reach if min(wishes) == FREE else PARAMETERS.beam_reach
        self._reach = (np.maximum(1.5 * draw.random((blocks, count)) - 0.5, 0) ** 2 * (reach * period)).astype(np.int64)
        if stray:
            strays = np.array(wishes)[:, None] != FREE
            some = draw.random((blocks, count)) < PARAMETERS.beam_stray
            far = some * draw.random((blocks, count)) * (PARAMETERS.beam_astray * period)
            self._reach = np.where(strays, far.astype(np.int64), self._reach)
        else:
            self._reach[np.array(wishes) != FREE] = 0

    def part(self, i: int, j: int, first: int, second: int) -> None:
        """Decide which instances of i (``first`` ticks long) lie between which of j (``second``)."""
        period = self.period
        low, high = self.gaps[i, j], -self.gaps[j, i]
        wish = np.clip(self._wished(j) - self._wished(i), low, high)
        whole = wish // period
        rest = wish - whole * period
        begins, ends = rest < first, rest > period - second  # j overlaps with i, or with the next i
        up = np.where(begins, first - rest, period - rest + first)
        down = np.where(begins, rest + second, rest - (period - second))
        likely = np.clip(down / np.maximum(up + down, 1), PARAMETERS.beam_unlikely, 1 - PARAMETERS.beam_unlikely)
        upward = self._draw.random(len(wish)) < likely
        whole += np.where(ends & upward, 1, np.where(begins & ~upward, -1, 0))
        whole = np.clip(whole, -(-(low + second - period) // period), (high - first) // period)
        self._learn(i, j, whole * period + first)
        self._learn(j, i, second - (whole + 1) * period)

    def fix(self) -> None:
        """Every block where it aims, in a random order: those that are free come last."""
        free = np.array([wish == FREE for wish in self._wishes])
        order = np.argsort(self._draw.random(self._reach.shape) + free[:, None], axis=0)
        every = np.arange(order.shape[1])
        for block in order:
            wished = np.stack([self._wished(i) for i in range(len(free))])[block, every]
            self._raise(self.gaps[:, -1], self.gaps[block, :, every].T + wished)
            self._raise(self.gaps[:, block, every], self.gaps[-1] - wished)

    def drop(self) -> None:
        """Forget the candidates whose choices contradict each other."""
        kept = np.flatnonzero((np.diagonal(self.gaps) <= 0).all(axis=1))
        self.gaps, self.rows, self._reach = self.gaps[:, :, kept], self.rows[kept], self._reach[:, kept]

    def _wished(self, i: int) -> Starts:
        low: Starts = self.gaps[-1, i]
        high: Starts = -self.gaps[i, -1]
        away = np.minimum(self._reach[i], np.maximum(high - low, 0))
        wished: Starts = high - away if self._wishes[i] == LATE else low + away
        return wished

    def _learn(self, i: int, j: int, gap: Starts) -> None:
        """t_j - t_i >= gap, closed over paths through it."""
        self._raise(self.gaps[:, i], self.gaps[j] + gap)

    def _raise(self, to: Starts, back: Starts) -> None:
        """Paths that lead ``to`` some place and from there ``back`` to any block (both blocks x candidates)."""
        np.maximum(self.gaps, to[:, None] + back[None], out=self.gaps)
