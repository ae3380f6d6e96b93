"""Norms over one or several names (``over``; the last axis, where none are named); weights have some of the names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from weft.runtime.by_hand.instructions import KernelCall
from weft.runtime.by_hand.kernels.elementwise import aligned, summed
from weft.runtime.by_hand.kernels.registry import KERNELS, back_of, flattened, shape_of

_Axes = Sequence[Sequence[str]]


def _standardized(x: Tensor, call: KernelCall, axes: _Axes) -> tuple[Tensor, list[str]]:
    """An axis for each name, with the names."""
    names = [name for axis in axes for name in axis]
    over = [names.index(name) for name in call.attributes.get("over") or axes[-1]]
    flat = flattened(call, x, axes)
    centred = flat - flat.mean(over, keepdim=True) if call.attributes.get("centred", True) else flat
    return centred * torch.rsqrt((centred**2).mean(over, keepdim=True) + call.attributes.get("eps", 1e-5)), names


def _norm(at: int) -> Callable[[KernelCall], Callable[..., Tensor]]:
    """``at``: which input of the call is normalized."""
    def of(call: KernelCall) -> Callable[..., Tensor]:
        def run(x: Tensor, *weights: Tensor) -> Tensor:
            y, names = _standardized(x, call, call.inputs[at])
            for i, (weight, axes) in enumerate(zip(weights, call.inputs[at + 1:], strict=True)):
                own = aligned(call, weight, axes, names)
                y = y * own if i == 0 else y + own
            return y.reshape(x.shape)

        return run

    return of


def _norm_grad_weight(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    y, names = _standardized(inputs[1], call, call.inputs[1])
    return (summed(call, flattened(call, inputs[0], call.inputs[0]) * y, names, call.outputs[0]),)


KERNELS.update({
    "norm": lambda inputs, call: (_norm(0)(call)(*inputs).reshape(shape_of(call, call.outputs[0])),),
    "norm_grad_input": back_of(_norm(1)), "norm_grad_weight": _norm_grad_weight,
})
