"""The compiled kernel (kernel.cpp, and lists.cpp for list schedules), called through ctypes.

Why C++ and ctypes, and neither numba nor a binding library: see :mod:`weft.solver.orders`. The binary is built when
weft is installed, if there is a compiler; it contains no Python, so one serves every version.
"""

from __future__ import annotations

import ctypes
import importlib.util
import weakref
from functools import cache

import numpy as np

from weft.solver.orders.tables import ORDERED_FOR, Integers, Longs, Tables
from weft.solver.orders.timed_rows import NEVER

__all__ = ["LARGEST_AMOUNT", "VERSION", "NativeKernel", "compiled_kernel", "why_not"]

#: What the binary must say of itself: ``kVersion`` in kernel.cpp.
VERSION = 5
#: Sums of amounts of memory stay below this, well within 64 bits.
LARGEST_AMOUNT = 2**62
#: The counts of the structure ``Instance`` in kernel.cpp, then its arrays.
_COUNTS = ("blocks", "micro_batches", "rows", "memories", "arcs", "links", "pools", "objective")
_ARRAYS = ("duration", "row_begin", "row_block", "arc", "lag", "link_row", "memory_row", "capacity", "take", "change",
           "pool_capacity", "pool_take", "pool_given")


class _Instance(ctypes.Structure):
    _fields_ = [*((name, ctypes.c_int32) for name in _COUNTS), *((name, ctypes.c_void_p) for name in _ARRAYS)]


@cache
def _library() -> ctypes.CDLL | str:
    """The binary, or why there is none."""
    found = importlib.util.find_spec("weft.solver.orders._kernel")
    if found is None or found.origin is None:
        return "it was not built, as there was no C++ compiler when weft was installed"
    try:
        library = ctypes.CDLL(found.origin)
        version = int(library.weft_version())
    except (OSError, AttributeError) as error:
        return f"it does not load ({error})"
    if version != VERSION:
        return f"it is of version {version}, and this weft needs {VERSION}: install weft again"
    pointer, int_, long, double = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_double
    written = [pointer] * 4  # a problem, and where its rows go
    for name, result, arguments in (
            ("new", pointer, [pointer]), ("delete", None, [pointer]), ("set", ctypes.c_int, [pointer, pointer]),
            ("makespan", long, [pointer]), ("overflow", double, [pointer]), ("best", long, [pointer]),
            ("best_rows", None, [pointer, pointer]), ("starts", None, [pointer, pointer]),
            ("back_to_best", None, [pointer]),
            ("anneal", long, [pointer, long, double, double, double, ctypes.c_uint64]),
            ("by_width", double, [*written, pointer, int_, pointer, int_]),
            ("by_priority", double, [*written, pointer, pointer, double, double, int_]),
            ("building_block", double, [*written, pointer])):
        function = getattr(library, f"weft_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def why_not() -> str | None:
    """Why the compiled kernel cannot be used here; None where it can."""
    library = _library()
    return library if isinstance(library, str) else None


def compiled_kernel() -> ctypes.CDLL | None:
    """The binary with its functions declared, where it can be used."""
    library = _library()
    return None if isinstance(library, str) else library


class NativeKernel:
    """See :class:`weft.solver.orders.twin.TwinKernel`, which has the same methods and gives the same answers."""

    def __init__(self, tables: Tables) -> None:
        library = _library()
        assert not isinstance(library, str), library
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
