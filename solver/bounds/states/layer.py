"""All states after so many operations, as arrays with a row for each, and the states after one operation more.

A state is the number of micro-batches of each block that have started, the end of the last of each, and the start of
the last operation of all: operations are added in order of start, so the next one starts no earlier. The level of a
device follows from the counts, as its blocks run one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weft.solver.bounds.states.system import Ints, System

Booleans = npt.NDArray[np.bool_]

#: Later than everything.
_LATER = 2**60


@dataclass(frozen=True)
class StateLayer:
    """``counts``: states x blocks. ``ends``: states x blocks x last ends, the latest first. ``now``: the last start.
    ``parent`` is the state's row in the layer before, ``added`` the block that was added to it."""

    counts: Ints
    ends: Ints
    now: Ints
    parent: Ints
    added: Ints

    def __len__(self) -> int:
        return len(self.now)

    def only(self, rows: Ints | Booleans) -> StateLayer:
        """The given states."""
        return StateLayer(self.counts[rows], self.ends[rows], self.now[rows], self.parent[rows], self.added[rows])


@dataclass(frozen=True)
class Outlook:
    """The continuation of each state: ``start``, the least start of each block's next operation; ``runnable``, whether
    it could be the next one; ``bound``, on the makespan. States x blocks, except ``bound``."""

    start: Ints
    runnable: Booleans
    bound: Ints

    def only(self, rows: Ints | Booleans) -> Outlook:
        """That of the given states."""
        return Outlook(self.start[rows], self.runnable[rows], self.bound[rows])


def first_layer(system: System) -> StateLayer:
    """The one state in which nothing has started."""
    blocks = len(system.blocks)
    none = np.zeros(1, dtype=np.int64)
    long_ago = np.full((1, blocks, system.ends), -_LATER, dtype=np.int64)
    return StateLayer(np.zeros((1, blocks), dtype=np.int64), long_ago, none, none, none)


def after_one_more(system: System, layer: StateLayer, ahead: Outlook, upper: int) -> StateLayer:
    """The states after one more operation, except those with a bound of ``upper`` or more at first sight."""
    rows, blocks = np.nonzero(ahead.runnable)
    start = ahead.start[rows, blocks]
    end = start + system.durations[blocks, layer.counts[rows, blocks]]
    short = end + system.tail[blocks, layer.counts[rows, blocks]] < upper
    rows, blocks, start, end = rows[short], blocks[short], start[short], end[short]
    own = np.arange(len(rows))
    counts, ends = layer.counts[rows], layer.ends[rows]
    counts[own, blocks] += 1
    ends[own, blocks, 1:] = ends[own, blocks, :-1]
    ends[own, blocks, 0] = end
    return StateLayer(counts, ends, start, rows, blocks)


def outlook(system: System, layer: StateLayer) -> Outlook:
    """The operations that can come next, their starts, and the least time from there on.

    The bound is the largest, over the blocks, of the next operation's least start, length and tail; and, over the
    devices, of the least start, the work and the least tail of the rest to run there.
    """
    # A column, of one block or wait, is what is looked at: it lies in one piece.
    waits, counts = system.waits, np.asfortranarray(layer.counts)
    left = counts < system.micro_batches
    wanted = np.asfortranarray(counts[:, waits.target]) - waits.distance  # the micro-batch of the source
    source = np.asfortranarray(counts[:, waits.source])
    since = source - 1 - wanted  # the number that the source has started after it; below 0: not yet
    there = (wanted < 0) | (since >= 0)
    known = (wanted >= 0) & (since >= 0) & (since < system.ends)
    ends = np.asfortranarray(layer.ends[np.arange(len(layer))[:, None], waits.source[None, :],
                                        np.where(known, since, 0)])
    arrival = np.where(known, ends + waits.lag, 0)

    last = np.asfortranarray(layer.ends[:, :, 0])
    start = np.asfortranarray(np.maximum(layer.now[:, None], system.head[
        np.arange(len(system.blocks))[None, :], np.minimum(counts, system.micro_batches - 1)]))
    for i, mates in enumerate(system.mates):
        for mate in mates:
            np.maximum(start[:, i], last[:, mate], out=start[:, i])
    runnable = left & _fits(system, counts)
    # From the start of a source's next operation to what the target waits for.
    apart = waits.lag + np.asfortranarray(system.spent[waits.source, np.clip(wanted + 1, 0, system.micro_batches)]
                                          - system.spent[waits.source, source])
    for w, (before, target, distance) in enumerate(zip(waits.source.tolist(), waits.target.tolist(),
                                                       waits.distance.tolist(), strict=True)):
        runnable[:, target] &= there[:, w]
        np.maximum(start[:, target], arrival[:, w], out=start[:, target])
        if distance:  # blocks that have not begun begin no earlier than the next operation
            later = start[:, before] + apart[:, w]
            np.maximum(start[:, target], np.where(there[:, w], 0, later), out=start[:, target])
    return Outlook(start, runnable, _bound(system, layer, left, _followed(system, start, there, apart)))


def _fits(system: System, counts: Ints) -> Booleans:
    """Whether each block's next operation finds room."""
    level = counts @ system.change.T
    fits = np.ones(counts.shape, dtype=bool, order="F")
    for device, capacity in enumerate(system.capacity.tolist()):
        takes = np.flatnonzero(system.take[device])
        fits[:, takes] &= level[:, device, None] + system.take[device, takes] <= capacity
    return fits


def _followed(system: System, start: Ints, there: Booleans, apart: Ints) -> Ints:
    """The least starts of all blocks' next operations, also by blocks that have not run yet."""
    waits = system.waits
    least = start.copy(order="F")
    by_target: dict[int, list[int]] = {}
    for w in np.flatnonzero(waits.distance == 0).tolist():
        by_target.setdefault(int(waits.target[w]), []).append(w)
    for target in system.ranked:
        for w in by_target.get(target, ()):
            source = int(waits.source[w])
            later = least[:, source] + apart[:, w]
            np.maximum(least[:, target], np.where(there[:, w], 0, later), out=least[:, target])
    return least


def _bound(system: System, layer: StateLayer, left: Booleans, least: Ints) -> Ints:
    own = np.arange(len(system.blocks))[None, :]
    ran = np.maximum(layer.counts - 1, 0)
    latest = layer.ends[:, :, 0]
    running = latest > layer.now[:, None]
    bound: Ints = np.maximum(layer.now, np.where(running, latest + system.tail[own, ran], 0).max(axis=1))
    following = np.minimum(layer.counts, system.micro_batches - 1)
    tail = system.durations[own, following] + system.tail[own, following]
    np.maximum(bound, np.where(left, least + tail, 0).max(axis=1), out=bound)
    work = np.asfortranarray(system.spent[:, -1] - system.spent[own, layer.counts])
    first, last = np.where(left, least, _LATER), np.where(left, system.tail[:, -1], _LATER)
    for machine in system.machines:
        on = list(machine)
        rest = first[:, on].min(axis=1) + work[:, on].sum(axis=1) + last[:, on].min(axis=1)
        np.maximum(bound, np.where(left[:, on].any(axis=1), rest, 0), out=bound)
    return bound
