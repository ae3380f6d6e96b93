"""What fixed per-device orders come to on many variants at once: their makespans, and whether they fit.

The earliest start of an operation is the longest path to it (:mod:`weft.solver.timing`); which operations are on the
paths is the same for all variants, so one pass over the operations serves them all. What a device holds depends on its
order alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from weft.solver.control.clock import checkpoint
from weft.solver.timing import DeadlockError, Orders
from weft.solver.variants.bounds import Numbers, Variants

#: Numbers that one pass holds at a time: 32 MB.
_AT_ONCE = 4_000_000


def makespans(variants: Variants, orders: Orders, micro_batches: int) -> Numbers:
    """The makespan of each variant under ``orders``, in ticks.

    Raises :class:`~weft.solver.timing.DeadlockError` where the orders contradict what waits for what.
    """
    sequence = _sequence(variants, orders, micro_batches)
    width = max(1, _AT_ONCE // max(1, len(sequence)))
    parts = [_timed(variants.chosen(slice(first, first + width)), sequence, micro_batches)
             for first in range(0, len(variants), width)]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def fitting(variants: Variants, orders: Orders) -> npt.NDArray[np.bool_]:
    """Which variants' devices can hold what ``orders`` make them hold."""
    fits = np.ones(len(variants), dtype=np.bool_)
    for device, row in enumerate(orders):
        checkpoint()
        level = np.zeros(len(variants), dtype=np.int64)
        room = variants.capacity[:, device]
        for block, _ in row:
            fits &= level + variants.take[:, block] <= room
            level += variants.change[:, block]
    return fits


def _sequence(variants: Variants, orders: Orders, micro_batches: int) -> list[tuple[int, int]]:
    """All operations, each after what it waits for and what runs before it on its device."""
    place = {operation: (device, k) for device, row in enumerate(orders) for k, operation in enumerate(row)}
    count = len(variants.device) * micro_batches
    if len(place) != count:
        raise DeadlockError(f"the orders hold {len(place)} operations of {count}")
    sources: list[list[int]] = [[] for _ in variants.device]
    targets: list[list[int]] = [[] for _ in variants.device]
    for wait in variants.waits:
        sources[wait.target].append(wait.source)
        targets[wait.source].append(wait.target)
    missing = {(block, m): len(sources[block]) + (place[block, m][1] > 0) for block, m in place}
    found = [operation for operation, number in missing.items() if not number]
    for block, m in found:  # grows as it is read
        device, k = place[block, m]
        following = [(target, m) for target in targets[block]]
        if k + 1 < len(orders[device]):
            following.append(orders[device][k + 1])
        for operation in following:
            missing[operation] -= 1
            if not missing[operation]:
                found.append(operation)
    if len(found) < count:
        raise DeadlockError("the device orders wait for each other in a circle")
    return found


def _timed(variants: Variants, sequence: list[tuple[int, int]], micro_batches: int) -> Numbers:
    """The makespans of some variants."""
    into: list[list[tuple[int, int]]] = [[] for _ in variants.device]
    for number, wait in enumerate(variants.waits):
        into[wait.target].append((wait.source, number))
    durations = np.ascontiguousarray(variants.durations.T)
    lags = np.ascontiguousarray(variants.lags.T)
    ends = np.zeros((len(variants.device), micro_batches, len(variants)), dtype=np.int64)
    free = np.zeros((variants.devices, len(variants)), dtype=np.int64)
    # A gradient of no length is none: its device does not wait for what it waits for.
    absent = [(block >= variants.stages) & (row == 0) for block, row in enumerate(durations)]
    for k, (block, m) in enumerate(sequence):
        if not k & 255:
            checkpoint()
        own, gone, end = free[variants.device[block]], absent[block], ends[block, m]
        for source, number in into[block]:
            np.maximum(end, ends[source, m] + lags[number], out=end)
        if not gone.any():
            np.maximum(end, own, out=end)
            end += durations[block]
            own[:] = end
        elif not gone.all():
            end[:] = np.where(gone, end, np.maximum(end, own) + durations[block])
            np.maximum(own, np.where(gone, 0, end), out=own)
    return np.asarray(free.max(axis=0), dtype=np.int64)
