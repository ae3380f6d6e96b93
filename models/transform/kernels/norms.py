"""Norms over one or several names (``over``; the last axis, where none are named); weights have some of the names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.models.transform.annotation import Dimensions
from weft.models.transform.kernels.elementwise import aligned, summed
from weft.models.transform.kernels.registry import KERNELS, Array, Call, Gradient, Kernel


def _names(call: Call, tensor: Dimensions) -> tuple[list[str], tuple[int, ...]]:
    """All names of what is normalized, and which axes it is normalized over."""
    names = [name for axis in tensor for name in axis]
    over = call.attributes.get("over") or tensor[-1]
    return names, tuple(names.index(name) for name in over)


def _standardized(x: Array, call: Call, over: tuple[int, ...]) -> tuple[Array, Array]:
    """What a norm multiplies by its weight, and by how much ``x`` was scaled."""
    centred = x - x.mean(axis=over, keepdims=True) if call.attributes.get("centred", True) else x
    scale = 1 / np.sqrt((centred**2).mean(axis=over, keepdims=True) + call.attributes.get("eps", 1e-5))
    return centred * scale, scale


def _norm(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    names, over = _names(call, call.annotation.inputs[0])
    y = _standardized(call.flat(arrays[0], call.annotation.inputs[0]), call, over)[0]
    for i, array in enumerate(arrays[1:]):
        own = aligned(call, array, call.annotation.inputs[i + 1], names)
        y = y * own if i == 0 else y + own
    return (call.grouped(y, call.annotation.outputs[0]),)


def _norm_gradient(i: int, count: int, attributes: Mapping[str, Any]) -> Gradient:
    if i == 0:
        return Gradient("norm_grad_input", ("i0", "i1") if count > 1 else ("i0",), attributes)
    return Gradient("norm_grad_weight", ("i0",), attributes) if i == 1 else Gradient("einsum")


def _norm_grad_input(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    how = call.annotation.inputs
    names, over = _names(call, how[1])
    y, scale = _standardized(call.flat(arrays[1], how[1]), call, over)
    g = call.flat(arrays[0], how[0])
    if len(arrays) > 2:
        g = g * aligned(call, arrays[2], how[2], names)
    centred = g - g.mean(axis=over, keepdims=True) if call.attributes.get("centred", True) else g
    back = scale * (centred - y * (g * y).mean(axis=over, keepdims=True))
    return (call.grouped(back, call.annotation.outputs[0]),)


def _norm_grad_weight(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    how = call.annotation.inputs
    names, over = _names(call, how[1])
    y = _standardized(call.flat(arrays[1], how[1]), call, over)[0]
    return (summed(call, call.flat(arrays[0], how[0]) * y, names, call.annotation.outputs[0]),)


KERNELS.update({
    "norm": Kernel(_norm, _norm_gradient),
    "norm_grad_input": Kernel(_norm_grad_input),
    "norm_grad_weight": Kernel(_norm_grad_weight),
})
