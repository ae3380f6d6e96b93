"""Convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional

from weft.runtime.by_hand.instructions import KernelCall
from weft.runtime.by_hand.kernels.registry import KERNELS, Run, back, shape_of


def _convolution(call: KernelCall) -> Mapping[str, Any]:
    return {"stride": call.attributes.get("stride", (1, 1)), "padding": call.attributes.get("padding", (0, 0))}


def _convolution_grad(which: int) -> Run:
    """The gradient of the input, or of the weight; of what it does not depend on, the shape counts."""
    def run(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
        gradient, other = inputs
        own = gradient.new_zeros(shape_of(call, call.outputs[0]))
        given = [gradient, own, other] if which == 0 else [gradient, other, own]
        return (back(lambda x, weight: functional.conv2d(x, weight, **_convolution(call)), given, which),)

    return run


KERNELS.update({
    "convolution": lambda inputs, call: (functional.conv2d(inputs[0], inputs[1], **_convolution(call)),),
    "convolution_grad_input": _convolution_grad(0), "convolution_grad_weight": _convolution_grad(1),
})
