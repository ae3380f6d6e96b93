"""Optimizers' steps."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from weft.runtime.by_hand.instructions import KernelCall
from weft.runtime.by_hand.kernels.registry import KERNELS


def _adam(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    weight, gradient, mean, square = inputs[:4]
    one, two = call.attributes.get("betas", (0.9, 0.999))
    step = float(inputs[4]) if len(inputs) > 4 else call.attributes.get("step", 1)
    weight = weight * (1 - call.attributes["rate"] * call.attributes.get("decay", 0.0))
    mean = one * mean + (1 - one) * gradient
    square = two * square + (1 - two) * gradient**2
    move = (mean / (1 - one**step)) / ((square / (1 - two**step)).sqrt() + call.attributes.get("eps", 1e-8))
    return weight - call.attributes["rate"] * move, mean, square


KERNELS.update({
    "sgd": lambda inputs, call: (inputs[0] - call.attributes["rate"] * inputs[1],), "adam": _adam,
})
