"""A problem in the arrays that both kernels read: blocks by number, operations as ``block * micro_batches + m``.

Devices that run the same blocks share one *row*: what one runs in some order, all do. A row is a run of
``micro_batches`` operations for each of its blocks; all rows stand one behind the other in one array.

For a period there is one operation of each block, and behind all rows stands, in the same order, which micro-batch of
the block a period has there (:data:`weft.solver.period.periodic.Rings`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from weft.solver.relations.pool_pass import with_waits
from weft.solver.ticks import TickProblem
from weft.solver.timing import Orders

#: What orders are searched for, in the order of ``Objective`` in kernel.cpp.
ORDERED_FOR = ("makespan", "span", "period")

Integers: TypeAlias = npt.NDArray[np.int32]
Longs: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Tables:
    """``instance`` with ``micro_batches`` (1 for a period), as arrays. Times are ticks, amounts units of memory."""

    instance: TickProblem
    micro_batches: int
    objective: str = "makespan"

    @property
    def count(self) -> int:
        """How many numbers say the orders."""
        return int(self.row_begin[-1]) * (2 if self.objective == "period" else self.micro_batches)

    @cached_property
    def row_of(self) -> tuple[int, ...]:
        """The row of each device."""
        numbers: dict[tuple[int, ...], int] = {}
        return tuple(numbers.setdefault(blocks, len(numbers)) for blocks in self.instance.blocks_on)

    @cached_property
    def rows(self) -> tuple[tuple[int, ...], ...]:
        """The blocks of each row."""
        return tuple(dict.fromkeys(self.instance.blocks_on))

    @cached_property
    def first_device(self) -> tuple[int, ...]:
        """The first device of each row."""
        return tuple(self.row_of.index(row) for row in range(len(self.rows)))

    @cached_property
    def row_begin(self) -> Integers:
        """Where the blocks of each row begin in :attr:`row_block`, and where the last end."""
        return np.cumsum([0, *map(len, self.rows)], dtype=np.int32)

    @cached_property
    def row_block(self) -> Integers:
        """The blocks of all rows."""
        return _integers([block for row in self.rows for block in row])

    @cached_property
    def duration(self) -> Longs:
        """Of each block."""
        return _longs(self.instance.durations)

    @cached_property
    def arc(self) -> Integers:
        """Per arc: source, target, distance, and link or -1."""
        arcs = [(arc.source, arc.target, arc.distance, -1 if arc.link is None else arc.link)
                for arc in self.instance.arcs]
        return _integers(arcs).reshape(len(arcs), 4)

    @cached_property
    def lag(self) -> Longs:
        """Of each arc."""
        return _longs([arc.lag for arc in self.instance.arcs])

    @cached_property
    def link_row(self) -> Integers:
        """The row of each link's source device."""
        return _integers([self.row_of[link.source] for link in self.instance.problem.links])

    @cached_property
    def _limited(self) -> tuple[int, ...]:
        return tuple(device for device in self.instance.distinct_devices if self.instance.limited(device))

    @cached_property
    def memory_row(self) -> Integers:
        """The row of each limited memory."""
        return _integers([self.row_of[device] for device in self._limited])

    @cached_property
    def capacity(self) -> Longs:
        """Of each limited memory."""
        return _longs([self.instance.capacity[device] for device in self._limited])

    @cached_property
    def take(self) -> Longs:
        """Limited memories x blocks: what a block takes at its start, workspace included."""
        return self._amounts([self.instance.take[device] for device in self._limited])

    @cached_property
    def change(self) -> Longs:
        """Limited memories x blocks: by how much a block has changed the level at its end."""
        return self._amounts([self.instance.change[device] for device in self._limited])

    @cached_property
    def pool_capacity(self) -> Longs:
        """Of each mixed pool."""
        return _longs([pool.capacity for pool in self.instance.mixed_pools])

    @cached_property
    def pool_take(self) -> Longs:
        """Mixed pools x blocks: what a block takes at its start."""
        return self._amounts([pool.take for pool in self.instance.mixed_pools])

    @cached_property
    def pool_given(self) -> Longs:
        """Mixed pools x blocks: what a block gives back at its end."""
        return self._amounts([{i: pool.given(i) for i in pool.take} for pool in self.instance.mixed_pools])

    @cached_property
    def least(self) -> Longs:
        """No span or period is less (one number): the work of the busiest row or link."""
        carried = [0] * len(self.instance.problem.links)
        for arc in self.instance.arcs:
            if arc.link is not None:
                carried[arc.link] += arc.lag * (1 if self.objective == "period" else
                                                max(0, self.micro_batches - arc.distance))
        work = (self.micro_batches * sum(self.instance.durations[block] for block in row) for row in self.rows)
        return _longs([max([0, *carried, *work])])

    def _amounts(self, tables: Sequence[Any]) -> Longs:
        amounts = np.zeros((len(tables), len(self.instance.durations)), dtype=np.int64)
        for row, table in zip(amounts, tables, strict=True):
            row[list(table)] = list(table.values())
        return amounts

    # -- orders ---------------------------------------------------------------------------------------------------

    def flat(self, orders: Orders) -> Integers:
        """The operations of all rows under ``orders``, by number."""
        ops = [op for device in self.first_device for op in orders[device]]
        if self.objective == "period":
            return _integers([*(block for block, _ in ops), *(m for _, m in ops)])
        return _integers([block * self.micro_batches + m for block, m in ops])

    def orders(self, flat: Integers) -> Orders:
        """Per-device orders from the operations of all rows."""
        cuts = (self.row_begin[1:-1] * self.micro_batches).tolist()
        ops = np.stack(np.split(flat, 2) if self.objective == "period" else np.divmod(flat, self.micro_batches), axis=1)
        rows = [tuple((block, m) for block, m in part.tolist()) for part in np.split(ops, cuts)]
        return [rows[row] for row in self.row_of]

    def with_waits(self, flat: Integers, starts: Longs) -> Orders:
        """The same, with what waits for the memory of lanes at ``starts``, in ticks, where lanes share any."""
        orders = self.orders(flat)
        if not self.instance.mixed_pools:
            return orders
        n = self.micro_batches
        return with_waits(self.instance, orders, {divmod(v, n): at for v, at in enumerate(starts.tolist())})


def _integers(values: Sequence[Any]) -> Integers:
    return np.ascontiguousarray(values, dtype=np.int32)


def _longs(values: Sequence[Any]) -> Longs:
    return np.ascontiguousarray(values, dtype=np.int64)
