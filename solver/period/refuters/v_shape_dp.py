"""Whether a V shape can run at a period: dynamic programming over devices and patterns of offsets, memory included.

The blocks of a micro-batch on a device of a V (:mod:`weft.solver.period.structure.v_shape`) start at t0 <= t1 <= t2 <=
t3; between t0 and t1, and between t2 and t3, it is with the devices further in, between t1 and t2 with those further
out. The possible continuations outwards from a device depend only on these four starts, up to a common shift. From a
device to the next one outwards each lane can wait for any time: t0 moves back, t1 on, t2 back, t3 on. So t2 - t1 only
falls, t1 - t0 and t3 - t2 only rise, and no device needs more memory if t3 - t2 + t1 - t0 is less: of all states with
the same t1 - t0 and t3 - t2 modulo the period T and the same t2 - t1, one with the least sum of the other two is
enough. The dynamic programme goes from the innermost device outwards and keeps these least sums; if no state is left on
some device, no steady state has this period.

Starts are counted in cells of T / n ticks from their times without any wait: a start t, in whole ticks (in which there
is a steady state if there is any), is in cell floor(n (t - r) / T). With T cells nothing is lost; with fewer the bound
stays valid:

* Cells never decrease along the chain, as times without waits do not.
* The difference of two starts whose cells are c apart is more than (c - 1) T / n and less than (c + 1) T / n, in whole
  ticks. A pattern is allowed if in some cyclic order of the blocks each difference has room for all blocks in between:
  if each of the differences, of blocks in order, does, they do so together.
* The level at the start of a block is a sum of the numbers of starts and ends of others, each a floor of a difference
  over T: the least that its range allows is taken.

Blocks at an end of their device are not part of a pattern; the memory they give back counts for their least durations.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, combinations, permutations
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from weft.solver.cpsat.budget import Budget
from weft.solver.period.structure.v_shape import V

#: By cells from t1 to t2, from t0 to t1 and from t2 to t3, the latter two modulo the period: the least number of
#: additional whole periods between t0 and t1 and between t2 and t3; or the largest.
ExtraPeriods = npt.NDArray[np.unsignedinteger[Any]]

#: Memory units by pattern.
Memory = npt.NDArray[np.signedinteger[Any]]

_PAIRS = tuple(combinations(range(4), 2))


class VPatterns:
    """The patterns of ``shape`` at ``period`` ticks, in ``cells`` cells.

    ``states`` counts those explored, ``most_states`` those of a single device.
    """

    def __init__(self, shape: V, period: int, cells: int) -> None:
        self.shape, self.period, self.cells = shape, period, cells
        self.states = self.most_states = 0
        most = max(capacity // level.kept for capacity, level in zip(shape.capacities, shape.levels, strict=True))
        self._dtype: type[np.unsignedinteger[Any]] = np.uint8 if most < np.iinfo(np.uint8).max - 1 else np.uint16
        self._none = self._dtype(np.iinfo(self._dtype).max - 1)  # one period more must not overflow
        cell = np.arange(3 * cells)
        #: The least and the largest difference of starts, by the difference of their cells.
        self._low = (cell - 1) * period // cells + 1
        self._high = -(-(cell + 1) * period // cells) - 1

    def refuted(self, budget: Budget) -> bool:
        """Whether no steady state has this period; False if ``budget`` is spent before that is known."""
        rows = 0
        for _ in self.least_extra():
            rows += 1
            if budget.spent:
                return False
        return rows < len(self.shape.rows)

    def least_extra(self) -> Iterator[ExtraPeriods]:
        """The fewest extra periods on each device, from the innermost outwards; ends early if no state is left."""
        extra: ExtraPeriods | None = None
        for row in reversed(range(len(self.shape.rows))):
            extra = self._first(row) if extra is None else self._waited(extra)
            self.states, self.most_states = self.states + extra.size, max(self.most_states, extra.size)
            extra = self._held(row, extra)
            if not len(extra):
                return
            yield extra

    def _first(self, row: int) -> ExtraPeriods:
        """No extra period, from t1 to t2 up to the limit of the memory."""
        level = self.shape.levels[row]
        periods = int(self._spare(row, self.cells).max()) // (level.kept + level.inner) + 1
        return np.zeros((max(0, periods) * self.cells, self.cells, self.cells), dtype=self._dtype)

    def _waited(self, extra: ExtraPeriods) -> ExtraPeriods:
        """The fewest extra periods once every lane has waited by any length."""
        for y in range(len(extra) - 2, -1, -1):  # lanes 1 and 2 take cells from t2 - t1, and give them to either side
            here, longer = extra[y], extra[y + 1]
            np.minimum(here[1:], longer[:-1], out=here[1:])
            np.minimum(here[0], longer[-1] + 1, out=here[0])
            np.minimum(here[:, 1:], longer[:, :-1], out=here[:, 1:])
            np.minimum(here[:, 0], longer[:, -1] + 1, out=here[:, 0])
        for cell in range(1, self.cells):
            np.minimum(extra[:, cell], extra[:, cell - 1], out=extra[:, cell])
        np.minimum(extra, extra[:, -1:] + 1, out=extra)
        np.minimum.accumulate(extra, axis=2, out=extra)
        return np.minimum(extra, extra[:, :, -1:] + 1, out=extra)

    def _held(self, row: int, extra: ExtraPeriods) -> ExtraPeriods:
        """``extra`` without the states that do not fit the device."""
        level, count = self.shape.levels[row], self.cells
        spare, rise = self._spare(row, min(count, len(extra))), level.kept + level.inner
        np.maximum(spare, -1, out=spare)
        fewer = (spare // spare.dtype.type(level.kept) + 1).astype(self._dtype)  # extra periods must be fewer
        for whole in range(-(-len(extra) // count)):
            part = extra[whole * count:(whole + 1) * count]
            if rise % level.kept:
                left = np.maximum(spare[:len(part)].astype(np.int64) - whole * rise, -1)
                here = (left // level.kept + 1).astype(self._dtype)
            else:
                less = self._dtype(whole * (rise // level.kept))
                here = np.maximum(fewer[:len(part)], less) - less
            np.maximum(part, (part >= here) * self._none, out=part)
        left_over = np.flatnonzero((extra < self._none).any(axis=(1, 2)))
        return extra[:left_over[-1] + 1] if len(left_over) else extra[:0]

    def _spare(self, row: int, height: int) -> Memory:
        """The free memory without extra periods; less than 0 if blocks overlap."""
        capacity = self.shape.capacities[row]
        levels = [self._level(row, lane, workspace) for lane, workspace in self.shape.levels[row].takers]
        most = capacity + max(sum(abs(table).max() for table in tables.values()) for tables in levels)
        units = np.int16 if most < np.iinfo(np.int16).max else np.int64
        spare: Memory = np.where(self._allowed(row, height), units(capacity), units(-1))
        for tables in levels:
            level = self._spread({pair: table.astype(units) for pair, table in tables.items()}, np.add, height)
            np.minimum(spare, units(capacity) - level, out=spare)
        return spare

    def _level(self, row: int, taker: int, workspace: int) -> dict[tuple[int, int], npt.NDArray[np.int64]]:
        """The level once lane ``taker`` has started, as a sum over pairs of lanes, without extra periods."""
        times = self.shape.times[row]
        tables = {pair: np.zeros(3 * self.cells, dtype=np.int64) for pair in _PAIRS}
        tables[0, 1] += workspace
        for lane, ended, amount in self.shape.levels[row].changes:
            if lane == taker:
                tables[0, 1] += amount * (-ended // self.period + 1)
                continue
            i, j = min(lane, taker), max(lane, taker)
            low, high = self._low + times[j] - times[i], self._high + times[j] - times[i]
            if lane > taker:
                low, high = -high, -low
            tables[i, j] += amount * (((low if amount > 0 else high) - ended) // self.period + 1)
        return tables

    def _allowed(self, row: int, height: int) -> npt.NDArray[np.bool_]:
        """Patterns in which the blocks of ``row`` need not overlap."""
        durations = [self.shape.instance.durations[i] for i in self.shape.rows[row]]
        times, total, period = self.shape.times[row], sum(durations), self.period
        lows = {(i, j): (self._low + times[j] - times[i]) % period for i, j in _PAIRS}
        width = self._high - self._low
        allowed = np.zeros((1, 1, 1), dtype=np.bool_)
        for rest in permutations(range(1, 4)):
            order = (0, *rest)
            begins = dict(zip(order, accumulate((durations[i] for i in order[:-1]), initial=0), strict=True))
            fits = {}
            for (i, j), low in lows.items():
                # From the start of i to that of j at least, and at most: the other way round it is the complement.
                between = begins[j] - begins[i] + (0 if order.index(i) < order.index(j) else total)
                high, most = low + width, period - (total - between)
                fits[i, j] = (low <= most) & (high >= between) | (high >= period + between)
            allowed = allowed | self._spread(fits, np.logical_and, height)
        return allowed

    def _spread(self, tables: dict[tuple[int, int], npt.NDArray[Any]], join: np.ufunc,
                height: int) -> npt.NDArray[Any]:
        """The entries of ``tables``, by cells from one lane to a later one, joined for the patterns up to
        ``height``."""
        count = self.cells
        cell = np.arange(count)
        y, other = cell[:height, None], cell[None, :]
        first = join(join(tables[0, 1][other], tables[0, 2][y + other]), tables[1, 2][y])
        second = join(tables[2, 3][other], tables[1, 3][y + other])
        across = sliding_window_view(sliding_window_view(tables[0, 3], count), count, axis=0)[:height]
        joined: npt.NDArray[Any] = join(join(first[:, :, None], second[:, None, :]), across)
        return joined
