"""States that another one makes superfluous.

Two states with the same counts have the same operations before them. Times of one count only as far as they reach: an
end after which all who wait for it have begun, and all transfers have arrived, is as good as any earlier one. If then
no time of the one is later than the other's, nor its last start, whatever can follow the other can follow it at the
same times, and the other is superfluous.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from weft.solver.bounds.states.layer import Layer, Outlook
from weft.solver.bounds.states.system import Ints, System

__all__ = ["Dominance"]

#: With so many of the states of the same counts, those with the least sums of times, each state is compared.
_COMPARED = 16


class Dominance:
    """For the layers of one system."""

    def __init__(self, system: System) -> None:
        self.system = system
        blocks = len(system.blocks)
        #: Numbers whose sums tell counts apart. Where two sums of different counts met, states would be compared that
        #: have nothing to do with each other, so counts are compared, too.
        self._mixed = np.random.default_rng(0).integers(1, 2**62, blocks, dtype=np.int64)
        self._reach = np.zeros(blocks, dtype=np.int64)
        np.maximum.at(self._reach, system.waits.source, system.waits.lag)
        self._by_source = np.argsort(system.waits.source, kind="stable")

    def kept(self, layer: Layer, ahead: Outlook) -> tuple[Layer, Outlook]:
        """The states that are needed, in an order of their own, with times that say nothing made equal."""
        ends = self._as_far_as_they_reach(layer)
        with np.errstate(over="ignore"):
            key = layer.counts @ self._mixed
        times = np.concatenate([ends.reshape(len(layer), -1), layer.now[:, None]], axis=1)
        ranked = np.lexsort(((times - layer.now.min()).sum(axis=1), key))
        key, times, counts = key[ranked], times[ranked], layer.counts[ranked]
        for place in range(_COMPARED):
            first = np.concatenate([[True], key[1:] != key[:-1]])
            leader = np.flatnonzero(first)[np.cumsum(first) - 1] + place
            later = np.flatnonzero(leader < np.arange(len(key)))
            later = later[key[leader[later]] == key[later]]
            if not len(later):
                break
            leader = leader[later]
            worse = (times[leader] <= times[later]).all(axis=1) & (counts[leader] == counts[later]).all(axis=1)
            needed = np.ones(len(key), dtype=bool)
            needed[later[worse]] = False
            ranked, key, times, counts = ranked[needed], key[needed], times[needed], counts[needed]
        equal = Layer(layer.counts, ends, layer.now, layer.parent, layer.added)
        return equal.only(ranked), ahead.only(ranked)

    def _as_far_as_they_reach(self, layer: Layer) -> Ints:
        """The ends, those that nobody waits for any more, or whose transfers have arrived, at one value."""
        system, waits, counts = self.system, self.system.waits, layer.counts
        past = (layer.now[:, None] - self._reach)[:, :, None]
        awaited: npt.NDArray[np.bool_] = np.zeros(layer.ends.shape, dtype=bool)
        for w in self._by_source.tolist():
            source, target = int(waits.source[w]), int(waits.target[w])
            wanted = counts[:, target] - int(waits.distance[w])  # that of the target's next operation
            newest = counts[:, source] - 1
            more = counts[:, target] < system.micro_batches
            for place in range(system.ends):
                awaited[:, source, place] |= more & (wanted <= newest - place)
        on_device = layer.ends > layer.now[:, None, None]
        on_device[:, :, 1:] = False
        return np.where(awaited | on_device, np.maximum(layer.ends, past), past)
