"""Layer after layer: from the state in which nothing has started to those in which everything has.

States whose bound is not below a known makespan are dropped, so that the rest in the end is shorter than it, or empty.
If the states become too many the search stops: every schedule that is shorter goes through one of the last layer's
states, so the least of their bounds is one for the problem.

Dominance:

Two states with the same counts have run the same operations. A time of one matters only as far as it reaches: an end
after which all operations that wait for it have begun, and all transfers have arrived, is as good as any earlier one.
If then no time of the one is later than the other's, nor its last start, any continuation of the other can follow it at
the same times, and the other is superfluous.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weft.solver.bounds.states.layer import Outlook, StateLayer, after_one_more, first_layer, outlook
from weft.solver.bounds.states.system import Ints, System
from weft.solver.control.clock import checkpoint


@dataclass(frozen=True)
class LeastMakespan:
    """``bound``: no schedule of the system is shorter, in ticks. ``sequence``: the blocks of one that has this
    makespan, in order of start, by their numbers in the instance; ``None`` if all were ruled out or left open.
    ``states`` and ``layers``: the numbers explored."""

    bound: int
    sequence: tuple[int, ...] | None
    states: int
    layers: int


def search(system: System, upper: int, *, most: int, widest: int) -> LeastMakespan:
    """The least makespan below ``upper``, in ticks; ``bound`` is ``upper`` if it is proven that there is none.

    At most ``most`` states are explored, and ``widest`` in one layer.
    """
    dominance = Dominance(system)
    layer, trace = first_layer(system), list[StateLayer]()
    states, bound = 0, 0
    for _ in range(system.operations + 1):
        checkpoint()
        ahead = outlook(system, layer)
        short = ahead.bound < upper
        if not short.any():
            return LeastMakespan(upper, None, states, len(trace))
        layer, ahead = dominance.kept(layer.only(short), ahead.only(short))
        trace.append(layer)
        states += len(layer)
        bound = max(bound, int(ahead.bound.min()))
        if len(trace) > system.operations:
            break
        if states > most or len(layer) > widest:
            return LeastMakespan(bound, None, states, len(trace))
        layer = after_one_more(system, layer, ahead, upper)
        if not len(layer):
            return LeastMakespan(upper, None, states, len(trace))
    row, sequence = int(ahead.bound.argmin()), []
    for layer in reversed(trace[1:]):
        sequence.append(system.blocks[int(layer.added[row])])
        row = int(layer.parent[row])
    return LeastMakespan(bound, tuple(reversed(sequence)), states, len(trace))


#: The number of states, those with the least sums of times among the same counts, that each state is compared with.
_COMPARED = 16


class Dominance:
    """Dominance for the layers of one system."""

    def __init__(self, system: System) -> None:
        self.system = system
        blocks = len(system.blocks)
        #: Numbers whose sums distinguish counts. If two sums of different counts collided, unrelated states would be
        #: compared, so counts are compared, too.
        self._mixed = np.random.default_rng(0).integers(1, 2**62, blocks, dtype=np.int64)
        self._reach = np.zeros(blocks, dtype=np.int64)
        np.maximum.at(self._reach, system.waits.source, system.waits.lag)
        self._by_source = np.argsort(system.waits.source, kind="stable")

    def kept(self, layer: StateLayer, ahead: Outlook) -> tuple[StateLayer, Outlook]:
        """The non-dominated states, in an order of their own, with times that no longer matter made equal."""
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
        equal = StateLayer(layer.counts, ends, layer.now, layer.parent, layer.added)
        return equal.only(ranked), ahead.only(ranked)

    def _as_far_as_they_reach(self, layer: StateLayer) -> Ints:
        """The ends, with those for which no operation waits any more, or whose transfers have arrived, at one value."""
        system, waits, counts = self.system, self.system.waits, np.asfortranarray(layer.counts)
        past = (layer.now[:, None] - self._reach)[:, :, None]
        awaited: npt.NDArray[np.bool_] = np.zeros(layer.ends.shape, dtype=bool, order="F")
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
