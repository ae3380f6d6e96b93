"""Views that cut and join."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from weft.runtime.by_hand.instructions import KernelCall
from weft.runtime.by_hand.kernels.registry import KERNELS, shape_of


def _take(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    start, stop, step = call.attributes["span"]
    return (inputs[0].index_select(call.attributes["axis"], torch.arange(start, stop, step, device=inputs[0].device)),)


def _take_grad(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    start, stop, step = call.attributes["span"]
    made = inputs[0].new_zeros(shape_of(call, call.outputs[0]))
    at = torch.arange(start, stop, step, device=made.device)
    return (made.index_add(call.attributes["axis"], at, inputs[0]),)


KERNELS.update({
    "reshape": lambda inputs, call: (inputs[0].reshape(shape_of(call, call.outputs[0])),),
    "take": _take, "take_grad": _take_grad,
    "join": lambda inputs, call: (torch.cat(list(inputs), call.attributes["axis"]),),
})
