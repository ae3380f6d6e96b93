"""Convolutions over any number of axes, in groups, and windows' largest elements.

Tensors are [batch, channel, places ...], weights [output channel, input channel, places ...]. A name of groups, where
there are several, stands before the channels in both. A transposed convolution is the gradient of one for its input.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from weft.models.transform.annotation import Annotation
from weft.models.transform.kernels.registry import KERNELS, Array, Call, Gradient, Kernel, of_input


def _geometry(call: Call, rank: int) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...], tuple[int, ...]]:
    """Padding before and behind, stride, dilation of each axis of places."""
    given = call.attributes.get("padding", (0,) * rank)
    padding = tuple((one, one) if isinstance(one, int) else (one[0], one[1]) for one in given)
    return padding, call.attributes.get("stride", (1,) * rank), call.attributes.get("dilation", (1,) * rank)


def _groups(call: Call) -> int:
    name = call.attributes.get("groups")
    return call.sizes[name] if name else 1


def _windows(call: Call, kernel: Sequence[int], places: Sequence[int]) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Each place of the kernel, and which elements of the padded tensor it meets, one for each place that comes out."""
    _, stride, dilation = _geometry(call, len(kernel))
    for at in itertools.product(*map(range, kernel)):
        yield at, (Ellipsis, *(slice(i * d, i * d + (n - 1) * s + 1, s)
                               for i, d, s, n in zip(at, dilation, stride, places, strict=True)))


def _last(at: Iterable[int | slice]) -> Any:
    """These of the last axes, all of the others."""
    return (Ellipsis, *at)


def _padded(x: Array, call: Call, value: float = 0.0) -> Array:
    padding = _geometry(call, x.ndim - 2)[0]
    return np.pad(x, ((0, 0), (0, 0), *padding), constant_values=value)


def _grouped(x: Array, groups: int, axis: int) -> Array:
    return x.reshape(*x.shape[:axis], groups, x.shape[axis] // groups, *x.shape[axis + 1:])


def _convolution(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    x, weight = arrays
    places = Annotation.shape(call.annotation.outputs[0], call.sizes)[2:]
    g = _groups(call)
    wide, w = _grouped(_padded(x, call), g, 1), _grouped(weight, g, 0)
    made = np.zeros((x.shape[0], g, w.shape[1], *places))
    for at, met in _windows(call, weight.shape[2:], places):
        made += np.einsum("ngc...,goc->ngo...", wide[met], w[_last(at)], optimize=True)
    return (made.reshape(x.shape[0], weight.shape[0], *places),)


def _convolution_grad_weight(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    gradient, x = arrays
    shape, g = Annotation.shape(call.annotation.outputs[0], call.sizes), _groups(call)
    wide, back = _grouped(_padded(x, call), g, 1), _grouped(gradient, g, 1)
    made = np.zeros((g, shape[0] // g, *shape[1:]))
    for at, met in _windows(call, shape[2:], gradient.shape[2:]):
        part = wide[met]
        made[_last(at)] = np.einsum("ngcx,ngox->goc", part.reshape(*part.shape[:3], -1),
                                     back.reshape(*back.shape[:3], -1), optimize=True)
    return (made.reshape(shape),)


def _convolution_grad_input(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    gradient, weight = arrays
    shape, g = Annotation.shape(call.annotation.outputs[0], call.sizes), _groups(call)
    padding = _geometry(call, len(shape) - 2)[0]
    made = np.zeros((shape[0], g, weight.shape[1], *(
        size + low + high for size, (low, high) in zip(shape[2:], padding, strict=True))))
    back, w = _grouped(gradient, g, 1), _grouped(weight, g, 0)
    for at, met in _windows(call, weight.shape[2:], gradient.shape[2:]):
        made[met] += np.einsum("ngo...,goc->ngc...", back, w[_last(at)], optimize=True)
    inside = tuple(slice(low, low + size) for size, (low, _) in zip(shape[2:], padding, strict=True))
    return (made[_last(inside)].reshape(shape),)


def _largest(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    places = Annotation.shape(call.annotation.outputs[0], call.sizes)[2:]
    wide = _padded(arrays[0], call, -math.inf)
    return (np.max([wide[met] for _, met in _windows(call, call.attributes["window"], places)], axis=0),)


def _largest_grad(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    """To the first of equal elements of a window."""
    gradient, x = arrays
    wide = _padded(x, call, -math.inf)
    met = [one for _, one in _windows(call, call.attributes["window"], gradient.shape[2:])]
    first = np.argmax([wide[one] for one in met], axis=0)
    made = np.zeros(wide.shape)
    for i, one in enumerate(met):
        made[one] += gradient * (first == i)
    inside = (slice(low, low + size) for size, (low, _) in zip(
        x.shape[2:], _geometry(call, x.ndim - 2)[0], strict=True))
    return (made[_last(inside)],)


def _of(kinds: Sequence[str], reads: Sequence[str]) -> Any:
    def gradient(i: int, count: int, attributes: Mapping[str, Any]) -> Gradient:
        return Gradient(kinds[i], (reads[i],), attributes)

    return gradient


KERNELS.update({
    "convolution": Kernel(_convolution, _of(("convolution_grad_input", "convolution_grad_weight"), ("i1", "i0"))),
    "convolution_grad_input": Kernel(_convolution_grad_input),
    "convolution_grad_weight": Kernel(_convolution_grad_weight),
    "convolution_transposed": Kernel(_convolution_grad_input, _of(("convolution", "convolution_transposed_grad_weight"),
                                                                  ("i1", "i0"))),
    "convolution_transposed_grad_weight": Kernel(lambda arrays, call: _convolution_grad_weight(arrays[::-1], call)),
    "window_largest": Kernel(_largest, of_input("window_largest_grad", ("i0",))),
    "window_largest_grad": Kernel(_largest_grad),
})
