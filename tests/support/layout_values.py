"""The effect of steps on numbers: each device's array before and after, as defined by the primitives.

Collectives do not use the whole tensor: they see the arrays of a group in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.models.layouts.layout import shape_of, slices, within
from weft.models.layouts.steps import LayoutStep, box_of

Array: TypeAlias = NDArray[Any]
#: Each device's array.
Held: TypeAlias = Mapping[int, Array]


def applied(step: LayoutStep, held: Held, shape: Sequence[int]) -> dict[int, Array]:
    """The devices' arrays after ``step``; ``shape`` is the whole tensor's."""
    if step.kind == "send":
        return _sent(step, held, shape)
    found: dict[int, Array] = {}
    for had, get in zip(step.gathered, step.groups, strict=True):
        found.update(zip(get, _together(step, [held[device] for device in had]), strict=True))
    return found


def _together(step: LayoutStep, arrays: Sequence[Array]) -> Sequence[Array]:
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


def _sent(step: LayoutStep, held: Held, shape: Sequence[int]) -> dict[int, Array]:
    boxes = {device: box_of(step.before, piece, shape) for device, piece in step.before.held.items()}
    found: dict[int, Array] = {}
    for device, piece in step.after.held.items():
        box = box_of(step.after, piece, shape)
        into = found[device] = np.zeros(shape_of(box))
        for message in step.messages:
            if message.target == device:
                into[slices(within(message.box, box))] += held[message.source][
                    slices(within(message.box, boxes[message.source]))]
    return found
