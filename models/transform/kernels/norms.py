"""Norms over the last axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.models.transform.kernels.registry import KERNELS, Array, Call, Gradient, Kernel


def _standardized(x: Array, call: Call) -> tuple[Array, Array]:
    """Over the last axis: what a norm multiplies by its weight, and by how much ``x`` was scaled."""
    centred = x - x.mean(axis=-1, keepdims=True) if call.attributes.get("centred", True) else x
    scale = 1 / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + call.attributes.get("eps", 1e-5))
    return centred * scale, scale


def _norm(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    y = _standardized(arrays[0], call)[0]
    for i, array in enumerate(arrays[1:]):
        y = y * array if i == 0 else y + array
    return (y,)


def _norm_gradient(i: int, count: int, attributes: Mapping[str, Any]) -> Gradient:
    if i == 0:
        return Gradient("norm_grad_input", ("i0", "i1") if count > 1 else ("i0",), attributes)
    return Gradient("norm_grad_weight", ("i0",), attributes) if i == 1 else Gradient("einsum")


def _norm_grad_input(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    gradient, x = arrays[:2]
    y, scale = _standardized(x, call)
    g = gradient * arrays[2] if len(arrays) > 2 else gradient
    centred = g - g.mean(axis=-1, keepdims=True) if call.attributes.get("centred", True) else g
    return (scale * (centred - y * (g * y).mean(axis=-1, keepdims=True)),)


def _norm_grad_weight(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    gradient, x = arrays
    return ((gradient * _standardized(x, call)[0]).reshape(-1, x.shape[-1]).sum(axis=0),)


KERNELS.update({
    "norm": Kernel(_norm, _norm_gradient),
    "norm_grad_input": Kernel(_norm_grad_input),
    "norm_grad_weight": Kernel(_norm_grad_weight),
})
