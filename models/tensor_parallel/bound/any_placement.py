"""How short can a step be on groups of GPUs, whatever its cuts, chunks and order?

What is covered: every GPU is in one group, each group of one of the degrees of the space; every layer is computed by
one group, or by all GPUs together. So it covers chains, Vs, loops and waves with any number of chunks a group, cuts of
any lengths, groups of different sizes beside each other, the shapes ``tensor``, ``m``, ``nn`` and ``k``, whole and
split backwards, periodic or not; and, of replicated layers, copies of the model that share the groups (``x``). Not
covered are groups that overlap (a GPU in a pair for one layer and in a group of eight for another) and cuts within a
layer.

A step of M is impossible if no groups cover all layers within M (:mod:`weft.models.tensor_parallel.bound.group_cover`),
or if no number of GPUs for each layer leaves room for what is kept
(:mod:`weft.models.tensor_parallel.bound.held_area`). Both only get easier as M rises, so the least M that is not
impossible is found by bisection, and what is refuted is the bound.
"""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np

from weft.models.tensor_parallel.bound.group_cover import GroupCover
from weft.models.tensor_parallel.bound.held_area import HeldArea
from weft.models.tensor_parallel.bound.layer_terms import LayerTerms
from weft.solver.control.clock import OutOfTime

__all__ = ["least_step"]

#: What is refuted and what is not are at most this share apart in the end.
_CLOSE = 1 / 8192
#: Longer than any step, in nanoseconds: what is impossible within it does not fit into memory.
_FOREVER = 2**60


def least_step(terms: LayerTerms, gpus: int, capacity: int, micro_batches: int, *, fills: bool = True,
               close: float = _CLOSE) -> float:
    """Nanoseconds that no step of ``micro_batches`` micro-batches goes below on ``gpus`` GPUs of ``capacity`` bytes;
    infinite where nothing fits.

    ``fills``: whether a step begins and ends with idle groups; if not, and with one micro-batch, it is the time of a
    micro-batch in a steady state. ``close``: the bound is at most this share below the best that these arguments give,
    unless time is over.
    """
    cover = GroupCover(terms, gpus, capacity, micro_batches, fills)
    area = HeldArea(terms, gpus, capacity, micro_batches)
    work = int((terms.load * np.array(terms.degrees)).min(axis=1).sum())
    low = max(work * micro_batches // gpus, terms.way if fills else 0) - 1  # impossible
    step, high = 1 + low // 64, low + 1
    with suppress(OutOfTime):  # what is refuted until then is a bound
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
            # What all GPUs compute is no part of any group, whose prices say nothing then.
            possible[together] = area.fits(most) and (together or area.fits(most, [cover.prices(most)]))
        if possible[together]:
            return False
    return True
