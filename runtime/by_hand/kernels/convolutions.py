"""Convolutions over one to three axes, in groups, transposed ones, and windows' largest elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from weft.runtime.by_hand.instructions import KernelCall
from weft.runtime.by_hand.kernels.registry import KERNELS, Run, back, shape_of

_FUNCTIONS: Mapping[int, Callable[..., Tensor]] = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_LARGEST: Mapping[int, Callable[..., Tensor]] = {1: functional.max_pool1d, 2: functional.max_pool2d,
                                                  3: functional.max_pool3d}


def _padded(x: Tensor, call: KernelCall, value: float = 0.0) -> Tensor:
    given = call.attributes.get("padding", (0,) * (x.ndim - 2))
    pairs = [(one, one) if isinstance(one, int) else tuple(one) for one in given]
    flat = [amount for pair in reversed(pairs) for amount in pair]
    return functional.pad(x, flat, value=value) if any(flat) else x


def _convolution(call: KernelCall, x: Tensor, weight: Tensor) -> Tensor:
    rank, name = x.ndim - 2, call.attributes.get("groups")
    return _FUNCTIONS[rank](
        _padded(x, call), weight, None, call.attributes.get("stride", (1,) * rank), 0,
        call.attributes.get("dilation", (1,) * rank), call.sizes[name] if name else 1)


def _convolution_grad(which: int, *, swapped: bool = False) -> Run:
    """The gradient of the input, or of the weight; of what it does not depend on, the shape counts."""
    def run(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
        gradient, other = reversed(inputs) if swapped else inputs
        own = gradient.new_zeros(shape_of(call, call.outputs[0]))
        given = [gradient, own, other] if which == 0 else [gradient, other, own]
        return (back(lambda x, weight: _met(_convolution(call, x, weight), gradient), given, which),)

    return run


def _met(made: Tensor, gradient: Tensor) -> Tensor:
    """As many places as the gradient has: those of an input that no window meets come last."""
    inside: Any = (..., *(slice(0, size) for size in gradient.shape[2:]))
    found: Tensor = made[inside]
    return found


def _largest(call: KernelCall, x: Tensor) -> Tensor:
    rank = x.ndim - 2
    return _LARGEST[rank](
        _padded(x, call, -math.inf), call.attributes["window"], call.attributes["stride"], 0,
        call.attributes.get("dilation", (1,) * rank))


def _largest_grad(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        return (back(lambda x: _largest(call, x), inputs, 0),)


KERNELS.update({
    "convolution": lambda inputs, call: (_convolution(call, inputs[0], inputs[1]),),
    "convolution_grad_input": _convolution_grad(0), "convolution_grad_weight": _convolution_grad(1),
    "convolution_transposed": _convolution_grad(0),
    "convolution_transposed_grad_weight": _convolution_grad(1, swapped=True),
    "window_largest": lambda inputs, call: (_largest(call, inputs[0]),), "window_largest_grad": _largest_grad,
})
