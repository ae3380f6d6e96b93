"""Local search by the compiled kernel (kernel.cpp), called through ctypes."""

from __future__ import annotations

import ctypes
import weakref

import numpy as np

from weft.solver.control.compiled import compiled_kernel
from weft.solver.orders.tables import ORDERED_FOR, Integers, Longs, Tables
from weft.solver.orders.timed_rows import NEVER

#: Sums of amounts of memory stay below this, well within 64 bits.
LARGEST_AMOUNT = 2**62
#: The counts of the structure ``Instance`` in kernel.cpp, then its arrays.
_COUNTS = ("blocks", "micro_batches", "rows", "memories", "arcs", "links", "pools", "objective")
_ARRAYS = ("duration", "row_begin", "row_block", "arc", "lag", "link_row", "memory_row", "capacity", "take", "change",
           "pool_capacity", "pool_take", "pool_given", "least")


class _Instance(ctypes.Structure):
    _fields_ = [*((name, ctypes.c_int32) for name in _COUNTS), *((name, ctypes.c_void_p) for name in _ARRAYS)]


class NativeKernel:
    """See :class:`weft.solver.orders.twin.TwinKernel`, which has the same methods and gives the same answers."""

    def __init__(self, tables: Tables) -> None:
        library = compiled_kernel()
        assert library is not None
        self._library = library
        self._count = tables.count
        self._operations = len(tables.duration) * tables.micro_batches
        counts = (len(tables.duration), tables.micro_batches, len(tables.rows), len(tables.memory_row),
                  len(tables.lag), len(tables.link_row), len(tables.pool_capacity),
                  ORDERED_FOR.index(tables.objective))
        instance = _Instance(*counts, *(getattr(tables, name).ctypes.data for name in _ARRAYS))
        self._kernel = ctypes.c_void_p(library.weft_new(ctypes.byref(instance)))
        weakref.finalize(self, library.weft_delete, self._kernel)

    def set(self, rows: Integers) -> bool:
        rows = np.ascontiguousarray(rows, dtype=np.int32)
        if len(rows) != self._count:
            raise ValueError(f"there are {len(rows)} operations in rows of {self._count}")
        return bool(self._library.weft_set(self._kernel, rows.ctypes.data))

    @property
    def makespan(self) -> int:
        return int(self._library.weft_makespan(self._kernel))

    @property
    def overflow(self) -> float:
        return float(self._library.weft_overflow(self._kernel))

    @property
    def best(self) -> int:
        return int(self._library.weft_best(self._kernel))

    @property
    def best_rows(self) -> Integers:
        rows = np.zeros(self._count if self.best < NEVER else 0, dtype=np.int32)
        self._library.weft_best_rows(self._kernel, rows.ctypes.data)
        return rows

    @property
    def starts(self) -> Longs:
        starts = np.zeros(self._operations, dtype=np.int64)
        self._library.weft_starts(self._kernel, starts.ctypes.data)
        return starts

    def back_to_best(self) -> None:
        self._library.weft_back_to_best(self._kernel)

    def anneal(self, evaluations: int, hot: float, cold: float, penalty: float, seed: int) -> int:
        return int(self._library.weft_anneal(self._kernel, evaluations, hot, cold, penalty, seed % 2**64))
