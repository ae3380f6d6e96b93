"""What steps do to numbers: each device's array before and after, as the primitives define it.

Collectives know nothing of the whole tensor: they see the arrays of a group in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.models.layouts.layout import Placed
from weft.models.layouts.steps import Box, Step, box_of

__all__ = ["Array", "Held", "applied", "lay_out", "put_together"]

Array: TypeAlias = NDArray[Any]
#: What each device holds.
Held: TypeAlias = Mapping[int, Array]


def lay_out(whole: Array, placed: Placed, seed: int = 0) -> dict[int, Array]:
    """``whole`` in a layout; terms are random numbers that add up to it."""
    random = np.random.default_rng(seed)
    terms = [random.standard_normal(whole.shape) for _ in range(placed.layout.values - 1)]
    terms.append(whole - sum(terms) if terms else whole)
    return {device: terms[piece[0]][_slices(box_of(placed, piece, whole.shape))].copy()
            for device, piece in placed.held.items()}


def put_together(held: Held, placed: Placed, shape: Sequence[int]) -> Array:
    """The tensor that the devices hold. Raises ``ValueError`` where two that should hold the same do not."""
    whole = np.zeros(shape)
    for piece, holders in placed.holders.items():
        first = held[holders[0]]
        for other in holders[1:]:
            if not np.allclose(first, held[other], rtol=0, atol=1e-12 * max(1.0, float(np.abs(first).max(initial=0)))):
                raise ValueError(f"the devices {holders[0]} and {other} hold different numbers")
        whole[_slices(box_of(placed, piece, shape))] += first
    return whole


def applied(step: Step, held: Held, shape: Sequence[int]) -> dict[int, Array]:
    """What the devices hold after ``step``; ``shape`` is the whole tensor's."""
    if step.kind == "send":
        return _sent(step, held, shape)
    found: dict[int, Array] = {}
    for had, get in zip(step.gathered, step.groups, strict=True):
        found.update(zip(get, _together(step, [held[device] for device in had]), strict=True))
    return found


def _together(step: Step, arrays: Sequence[Array]) -> Sequence[Array]:
    k, source, target = len(arrays), step.source, step.target
    if step.kind == "all_gather":
        assert source is not None
        return [np.concatenate(arrays, source)] * k
    if step.kind == "all_to_all":
        assert source is not None and target is not None
        cut = [np.split(array, k, target) for array in arrays]
        return [np.concatenate([parts[i] for parts in cut], source) for i in range(k)]
    if step.kind == "slice":
        assert target is not None
        return [np.split(array, k, target)[i] for i, array in enumerate(arrays)]
    if step.kind == "term":
        return [array if i == 0 else np.zeros_like(array) for i, array in enumerate(arrays)]
    total = sum(arrays[1:], arrays[0].copy())
    if step.kind == "all_reduce":
        return [total] * k
    assert target is not None
    return np.split(total, k, target)


def _sent(step: Step, held: Held, shape: Sequence[int]) -> dict[int, Array]:
    boxes = {device: box_of(step.before, piece, shape) for device, piece in step.before.held.items()}
    found: dict[int, Array] = {}
    for device, piece in step.after.held.items():
        box = box_of(step.after, piece, shape)
        into = found[device] = np.zeros([high - low for low, high in box])
        for message in step.messages:
            if message.target == device:
                into[_within(message.box, box)] += held[message.source][_within(message.box, boxes[message.source])]
    return found


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in box)


def _within(box: Box, frame: Box) -> tuple[slice, ...]:
    return tuple(slice(low - start, high - start) for (low, high), (start, _) in zip(box, frame, strict=True))
