"""List schedules by the compiled kernel (lists.cpp): the same operations at the same times as in Python.

Where :func:`fits_kernel` says no (there is no compiled kernel, or amounts of memory are too large for 64 bits) the
caller runs its own loop. None stands for a pass that memory leaves stuck.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from weft.solver.control.clock import checkpoint
from weft.solver.control.compiled import compiled_kernel
from weft.solver.orders.native import LARGEST_AMOUNT
from weft.solver.pools import MixedPool
from weft.solver.problem import Problem
from weft.solver.timing import Array, arcs_by_source, begins_of

#: Operations (block, micro-batch) of a device, in order.
Row: TypeAlias = list[tuple[int, int]]

_UNLIMITED = np.iinfo(np.int64).max
_GRAPH = (("blocks", "micro_batches", "devices", "links", "pools", "dependencies"),
          ("duration", "on_begin", "on", "take", "change", "room", "arc_begin", "arc_target", "arc_distance",
           "arc_link", "arc_lag", "pool_room", "pool_member", "pool_take", "pool_given"))
_CHAIN = (("steps", "devices", "micro_batches"),
          ("device", "has_filler", "duration", "filler_duration", "lag", "take", "change", "filler_take",
           "filler_change", "room", "offset"))


def fits_kernel(amounts: Iterable[int], operations: int) -> bool:
    """Whether there is a compiled kernel that can add up so many ``amounts`` of memory as there are operations."""
    return compiled_kernel() is not None and max(map(abs, amounts), default=0) * max(1, operations) <= LARGEST_AMOUNT


class _Graph(ctypes.Structure):
    _fields_ = [*((name, ctypes.c_int32) for name in _GRAPH[0]), *((name, ctypes.c_void_p) for name in _GRAPH[1])]


class _Chain(ctypes.Structure):
    _fields_ = [*((name, ctypes.c_int32) for name in _CHAIN[0]), *((name, ctypes.c_void_p) for name in _CHAIN[1]),
                *((name, ctypes.c_double) for name in ("interval", "lead", "patience"))]


class _Rows:
    """Room for the operations of each device: ``sizes`` of them."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.begin = begins_of(sizes)
        self.block, self.micro_batch = (np.zeros(self.begin[-1], dtype=np.int32) for _ in range(2))

    @property
    def pointers(self) -> list[int]:
        """What the kernel writes through."""
        return [each.ctypes.data for each in (self.begin, self.block, self.micro_batch)]

    @property
    def rows(self) -> list[Row]:
        """What it has written."""
        operations = list(zip(self.block.tolist(), self.micro_batch.tolist(), strict=True))
        borders = self.begin.tolist()
        return [operations[a:b] for a, b in pairwise(borders)]


class GraphTables:
    """Arrays of a problem for passes of any number of micro-batches.

    ``take``, ``change`` (by device and block), ``room`` (by device) and ``pools`` are whole numbers, those of
    :class:`~weft.solver.baselines.lib.amounts.Amounts`.
    """

    def __init__(self, problem: Problem, take: Sequence[dict[int, int]], change: Sequence[dict[int, int]],
                 room: Sequence[int | None], pools: Sequence[MixedPool]) -> None:
        blocks = problem.blocks
        self.sizes = [len(row) for row in problem.blocks_on]
        self.on = [(i, d) for i, block in enumerate(blocks) for d in block.devices]
        amounts = [[take[d][i] for i, d in self.on], [change[d][i] for i, d in self.on],
                   [_UNLIMITED if amount is None else amount for amount in room]]
        pooled = [[[by.get(i, 0) for i in range(len(blocks))] for by in (
            pool.take, {i: pool.given(i) for i in pool.take})] for pool in pools]
        every = [*amounts[0], *amounts[1], *(amount for pool in pooled for row in pool for amount in row),
                 *(pool.capacity for pool in pools), *(amount for amount in room if amount is not None)]
        #: The largest amount.
        self.largest = max(map(abs, every), default=0)
        self.counts = (len(blocks), len(problem.devices), len(problem.links), len(pools),
                       sum(len(block.after) for block in blocks))
        if not fits_kernel([self.largest], 1):
            return
        self.arrays: dict[str, Array] = {
            "duration": _doubles(block.duration for block in blocks),
            "on_begin": begins_of([len(block.devices) for block in blocks]), "on": _ints(d for _, d in self.on),
            "take": _longs(amounts[0]), "change": _longs(amounts[1]), "room": _longs(amounts[2]),
            **arcs_by_source(problem),
            "pool_room": _longs(pool.capacity for pool in pools),
            "pool_member": _ints(int(i in pool.take) for pool in pools for i in range(len(blocks))),
            "pool_take": _longs(amount for pool in pooled for amount in pool[0]),
            "pool_given": _longs(amount for pool in pooled for amount in pool[1])}

    def fit_kernel(self, micro_batches: int) -> bool:
        """Whether the compiled kernel can run so many."""
        return fits_kernel([self.largest], self.counts[0] * micro_batches)

    def by_width(self, micro_batches: int, width: int, urgency: Sequence[int],
                 parts: Sequence[int] | None) -> tuple[float, list[Row]] | None:
        """See :func:`weft.solver.baselines.rivals.greedy.list_schedule`."""
        part = _ints(parts or [0] * len(urgency))
        rank = np.empty(len(urgency), dtype=np.int32)
        rank[list(urgency)] = np.arange(len(urgency), dtype=np.int32)
        return self._pass("weft_by_width", micro_batches, rank.ctypes.data, min(width, 2**31 - 1), part.ctypes.data,
                          int(part.max()) + 1)

    def by_priority(self, micro_batches: int, filler: Sequence[bool], offsets: Sequence[float], interval: float,
                    lead: float, reserve: bool) -> tuple[float, list[Row]] | None:
        """See :func:`weft.solver.baselines.lib.priority_rule.schedule_by_priority`."""
        fillers, keys = _ints(filler), _doubles(offsets)
        return self._pass("weft_by_priority", micro_batches, fillers.ctypes.data, keys.ctypes.data,
                          interval, lead, int(reserve))

    def _pass(self, function: str, micro_batches: int, *arguments: object) -> tuple[float, list[Row]] | None:
        library = compiled_kernel()
        assert library is not None
        checkpoint()
        blocks, devices, links, pools, arcs = self.counts
        graph = _Graph(blocks, micro_batches, devices, links, pools, arcs,
                       *(self.arrays[name].ctypes.data for name in _GRAPH[1]))
        rows = _Rows([size * micro_batches for size in self.sizes])
        makespan: float = getattr(library, function)(ctypes.byref(graph), *rows.pointers, *arguments)
        return None if makespan < 0 else (makespan, rows.rows)


class ChainTables:
    """Arrays of a chain of steps for passes of any building block.

    ``times`` are durations of steps, of fillers and lags; ``amounts`` what steps take and change, then fillers.
    """

    def __init__(self, device: Sequence[int], has_filler: Sequence[bool], times: Sequence[Sequence[float]],
                 amounts: Sequence[Sequence[int]]) -> None:
        self.steps = len(device)
        self.sizes: Counter[int] = Counter()
        for d, filled in zip(device, has_filler, strict=True):
            self.sizes[d] += 1 + filled
        #: The largest amount.
        self.largest = max((abs(amount) for row in amounts for amount in row), default=0)
        if fits_kernel([self.largest], 1):
            self.arrays = [_ints(device), _ints(has_filler), *map(_doubles, times), *map(_longs, amounts)]
            self.pointers = [array.ctypes.data for array in self.arrays]

    def run(self, room: Sequence[int | None], micro_batches: int, offsets: Sequence[float],
            manner: tuple[float, float, float]) -> tuple[list[Row], float, float] | None:
        """Rows, makespan and pace of a pass of :class:`weft.solver.baselines.lib.building_block.StepChain`, or None.

        ``manner`` is the interval, the lead and the patience. In the rows the filler of step i of k is k + i.
        """
        library = compiled_kernel()
        assert library is not None
        checkpoint()
        limits, keys = _longs(_UNLIMITED if amount is None else amount for amount in room), _doubles(offsets)
        chain = _Chain(self.steps, len(room), micro_batches, *self.pointers, limits.ctypes.data, keys.ctypes.data,
                       *manner)
        rows, pace = _Rows([self.sizes[d] * micro_batches for d in range(len(room))]), ctypes.c_double()
        makespan = library.weft_building_block(ctypes.byref(chain), *rows.pointers, ctypes.byref(pace))
        return None if makespan < 0 else (rows.rows, makespan, pace.value)


def _ints(values: Iterable[int]) -> Array:
    return np.array(list(values), dtype=np.int32)


def _longs(values: Iterable[int]) -> Array:
    return np.array(list(values), dtype=np.int64)


def _doubles(values: Iterable[float]) -> Array:
    return np.array(list(values), dtype=np.float64)
