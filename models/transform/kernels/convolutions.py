"""Convolutions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.models.transform.annotation import Annotation
from weft.models.transform.kernels.registry import KERNELS, Array, Call, Gradient, Kernel


def _windows(x: Array, call: Call, high: int, wide: int) -> Array:
    """``x`` of batch, channel, row, column as [batch, channel, kernel row, kernel column, row, column]."""
    (up, left), (down, right) = call.attributes.get("padding", (0, 0)), call.attributes.get("stride", (1, 1))
    padded = np.pad(x, ((0, 0), (0, 0), (up, up), (left, left)))
    rows = (padded.shape[2] - high) // down + 1
    columns = (padded.shape[3] - wide) // right + 1
    found = np.empty((*x.shape[:2], high, wide, rows, columns))
    for i in range(high):
        for j in range(wide):
            found[:, :, i, j] = padded[:, :, i:i + rows * down:down, j:j + columns * right:right]
    return found


def _convolution(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    x, weight = arrays
    return (np.einsum("ncpqyz,ocpq->noyz", _windows(x, call, *weight.shape[2:]), weight, optimize=True),)


def _convolution_grad_weight(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    gradient, x = arrays
    high, wide = Annotation.shape(call.annotation.outputs[0], call.sizes)[2:]
    return (np.einsum("ncpqyz,noyz->ocpq", _windows(x, call, high, wide), gradient, optimize=True),)


def _convolution_grad_input(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    gradient, weight = arrays
    n, c, rows, columns = Annotation.shape(call.annotation.outputs[0], call.sizes)
    (up, left), (down, right) = call.attributes.get("padding", (0, 0)), call.attributes.get("stride", (1, 1))
    made = np.zeros((n, c, rows + 2 * up, columns + 2 * left))
    y, z = gradient.shape[2:]
    for i in range(weight.shape[2]):
        for j in range(weight.shape[3]):
            made[:, :, i:i + y * down:down, j:j + z * right:right] += np.einsum(
                "noyz,oc->ncyz", gradient, weight[:, :, i, j])
    return (made[:, :, up:up + rows, left:left + columns],)


KERNELS.update({
    "convolution": Kernel(_convolution, lambda i, count, attributes: Gradient(
        ("convolution_grad_input", "convolution_grad_weight")[i], (("i1",), ("i0",))[i], attributes)),
    "convolution_grad_input": Kernel(_convolution_grad_input),
    "convolution_grad_weight": Kernel(_convolution_grad_weight),
})
