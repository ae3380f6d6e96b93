"""A lower bound on a step on groups of GPUs, for any cuts, chunks and order.

It covers placements in which every GPU is in one group, each group of one of the degrees of the space, and every layer
is computed by one group, or by all GPUs together. These include chains, Vs, loops and waves with any number of chunks a
group, cuts of any lengths, groups of different sizes beside each other, the shapes ``tensor``, ``m``, ``nn`` and ``k``,
whole and split backwards, periodic or not; and, of replicated layers, copies of the model that share the groups
(``x``). Overlapping groups (a GPU in a pair for one layer and in a group of eight for another) and cuts within a layer
are not covered.

A step of M is impossible if no groups cover all layers within M (:mod:`weft.models.tensor_parallel.bound.group_cover`),
or if for no numbers of GPUs a layer the activations fit. Both only get easier as M rises, so the least M not refuted is
found by bisection, and the largest refuted M is the bound.

The memory test: activations over all GPUs and the whole step.

A layer's activation is kept from its forward to the end of its input gradient, so at least for the forwards and input
gradients of all later layers. Over a step of M seconds that is an area, bytes times seconds, and all GPUs together have
their memory times M less the weights. More GPUs a layer make this time shorter and the total activation larger
(undivided tensors are on every GPU), fewer make it longer. The choice is the number of GPUs of each layer; a Lagrangian
relaxation decides whether any choice fits both the memory and the GPUs: a multiplier weighs the memory against the
GPUs, and for each the least sum is found by dynamic programming over the layers, whose state is the memory kept up to a
layer (rounded down, so the sum is never too large). If for some multiplier even the least sum is too large, no choice
fits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.models.tensor_parallel.bound.group_cover import GroupCover, LayerTerms
from weft.solver.control.clock import OutOfTime, checkpoint

#: The final gap between refuted and unrefuted times, as a share.
_CLOSE = 1 / 8192
#: Longer than any step, in nanoseconds: a placement impossible within it does not fit into memory.
_FOREVER = 2**60


def least_step(terms: LayerTerms, gpus: int, capacity: int, micro_batches: int, *, fills: bool = True,
               close: float = _CLOSE) -> float:
    """A lower bound in nanoseconds on steps of ``micro_batches`` micro-batches on ``gpus`` GPUs of ``capacity`` bytes;
    infinite if nothing fits.

    ``fills``: whether a step begins and ends with idle groups; if not, and with one micro-batch, it is the time of a
    micro-batch in a steady state. ``close``: the bound is at most this share below the best that these arguments give,
    unless time is over.
    """
    cover = GroupCover(terms, gpus, capacity, micro_batches, fills)
    area = HeldArea(terms, gpus, capacity, micro_batches)
    work = int((terms.load * np.array(terms.degrees)).min(axis=1).sum())
    low = max(work * micro_batches // gpus, terms.way if fills else 0) - 1  # impossible
    step, high = 1 + low // 64, low + 1
    with suppress(OutOfTime):  # the time refuted so far is a bound
        if _is_impossible(cover, area, _FOREVER):
            return math.inf
        while _is_impossible(cover, area, high):
            low, high, step = high, high + step, 2 * step
        while high - low > max(1, int(close * low)):
            middle = (low + high) // 2
            if _is_impossible(cover, area, middle):
                low = middle
            else:
                high = middle
    return low + 1


def _is_impossible(cover: GroupCover, area: HeldArea, most: int) -> bool:
    """Whether no placement ends within ``most`` nanoseconds."""
    possible: dict[bool, bool] = {}  # by whether all GPUs compute some layers together
    for together in cover.covers(most):
        if together not in possible:
            # Layers on all GPUs belong to no group, whose prices do not apply then.
            possible[together] = area.fits(most) and (together or area.fits(most, [cover.prices(most)]))
        if possible[together]:
            return False
    return True


#: Number of distinguished amounts of kept memory, up to this many times the least total of all layers; larger amounts
#: count as that.
_CELLS, _TIMES = 4096, 4
#: Number of cell sizes tried, increasing slightly: the best is the one whose multiples are closest to the layers'
#: amounts.
_SIZES = 48
#: Multipliers tried: from the first on by a factor, then between the two best.
_TRIES = 10
_Row = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class HeldArea:
    """Layers of ``terms`` on ``gpus`` GPUs of ``capacity`` bytes, for ``micro_batches`` micro-batches."""

    terms: LayerTerms
    gpus: int
    capacity: int
    micro_batches: int

    def fits(self, most: int, prices: Sequence[_Row] = ()) -> bool:
        """Whether some numbers of GPUs a layer may fit within time and memory in ``most`` nanoseconds; ``False`` is
        proven.

        ``prices``: shares of all GPUs that a layer takes at each degree; over all layers they sum to at most 1. By
        default its work as a share of all GPUs' time.
        """
        if not self.terms.is_row or not self.terms.kept.any() or not self.capacity:
            return True
        work: _Row = np.asarray(self.terms.load * self._degrees * self.micro_batches / (most * self.gpus),
                                dtype=np.float64)
        return all(self._fits(most, price) for price in prices or (work,))

    def _fits(self, most: int, price: _Row) -> bool:
        low, high, weight = 0.0, np.inf, 1.0
        for _ in range(_TRIES):
            checkpoint()
            gpus, memory = self._cheapest(most, price, weight)
            if gpus + weight * memory > (1 + weight) * (1 + 1e-9):
                return False
            if gpus <= 1 and memory <= 1:
                return True
            if memory > 1:
                low = weight
            else:
                high = weight
            weight = weight * 4 if high == np.inf else weight / 4 if low == 0.0 else (low * high) ** 0.5
        return True

    @cached_property
    def _degrees(self) -> NDArray[np.int64]:
        return np.array(self.terms.degrees)

    @cached_property
    def _cell(self) -> float:
        """Bytes of a cell."""
        kept = self.terms.kept * self._degrees
        size = max(1.0, _TIMES * float(kept.min(axis=1).sum()) / (_CELLS - 1))
        sizes = size * (1 + np.arange(_SIZES) / _SIZES)
        amounts, counts = np.unique(kept[kept > 0], return_counts=True)
        lost = (amounts[None, :] % sizes[:, None]) / amounts[None, :] * counts[None, :]
        return float(sizes[int(lost.sum(axis=1).argmin())])

    def _cheapest(self, most: int, price: _Row, weight: float) -> tuple[float, float]:
        """Shares of all GPUs and of their memory of the choice with the least GPUs + ``weight`` x memory."""
        terms, cell = self.terms, self._cell
        static = terms.static * self._degrees / (self.capacity * self.gpus)
        way = (terms.forward + terms.back) * (self.micro_batches / (most * self.capacity * self.gpus))
        steps = np.minimum(terms.kept * self._degrees // cell, _CELLS - 1).astype(int)
        amounts = np.arange(_CELLS, dtype=np.float64) * cell
        # From the last layer on: the total of the layers from here on, by the amount kept before them.
        rest: Any = np.zeros(_CELLS)
        choices: list[NDArray[np.intp]] = []
        for layer in reversed(range(terms.layers)):
            options = []
            for column in range(len(terms.degrees)):
                here = np.minimum(np.arange(_CELLS) + steps[layer, column], _CELLS - 1)
                fixed = price[layer, column] + weight * static[layer, column]
                options.append(fixed + weight * way[layer, column] * amounts[here] + rest[here])
            table = np.array(options)
            choices.append(table.argmin(axis=0))
            rest = table.min(axis=0)
        at, gpus, held = 0, 0.0, 0.0
        for layer, choice in enumerate(reversed(choices)):
            column = int(choice[at])
            at = min(at + int(steps[layer, column]), _CELLS - 1)
            gpus += price[layer, column]
            held += static[layer, column] + way[layer, column] * amounts[at]
        return gpus, held
