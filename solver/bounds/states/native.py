"""Layers of states by the compiled kernel (layers.cpp), called through ctypes."""

from __future__ import annotations

import ctypes
import weakref
from itertools import accumulate

import numpy as np

from weft.solver.bounds.states.system import Ints, System
from weft.solver.control.compiled import compiled_kernel

#: Times in ticks stay below this, operations below that: the kernel keeps fewer bits of them.
_LONGEST, _MOST = 2**29, 2**16


class _System(ctypes.Structure):
    """Its counts, then its arrays, in the order of ``System`` in layers.cpp."""

    _fields_ = [*((f"count {n}", ctypes.c_int64) for n in range(6)),
                *((f"array {n}", ctypes.c_void_p) for n in range(18))]


def fits(system: System) -> bool:
    """Whether there is a compiled kernel, and the numbers of ``system`` are small enough for it."""
    longest = int(system.spent[:, -1].sum() + system.micro_batches * system.waits.lag.sum()
                  + system.head.max(initial=0) + system.tail.max(initial=0))
    return compiled_kernel() is not None and longest < _LONGEST and system.operations < _MOST


class NativeLayers:
    """Same methods and answers as :class:`weft.solver.bounds.states.layers.StateLayers`."""

    def __init__(self, system: System, reach: Ints, mixed: Ints) -> None:
        library = compiled_kernel()
        assert library is not None
        waits = system.waits
        rows = [row for lists in (system.machines, system.mates)
                for row in ([0, *accumulate(map(len, lists))], [i for part in lists for i in part])]
        self._arrays = [np.ascontiguousarray(array, dtype=np.int64) for array in (
            system.durations, system.spent, system.head, system.tail, *rows, waits.source, waits.target,
            waits.lag, waits.distance, system.ranked, system.change, system.take, system.capacity, reach, mixed)]
        self._system, self._library = system, library
        self._layers = ctypes.c_void_p(library.weft_states_new(ctypes.byref(_System(
            len(system.blocks), system.micro_batches, len(system.machines), len(system.capacity), len(waits.lag),
            system.ends, *(array.ctypes.data for array in self._arrays)))))
        weakref.finalize(self, library.weft_states_delete, self._layers)

    def next(self, upper: int) -> tuple[int, int]:
        least = ctypes.c_int64()
        kept = int(self._library.weft_states_next(self._layers, min(upper, 2**62), ctypes.byref(least)))
        return kept, least.value

    def narrow(self, most: int) -> None:
        self._library.weft_states_narrow(self._layers, most)

    def sequence(self) -> list[int]:
        blocks = np.zeros(self._system.operations, dtype=np.int32)
        self._library.weft_states_sequence(self._layers, blocks.ctypes.data)
        return [int(block) for block in blocks]
