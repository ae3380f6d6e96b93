"""Norms over the last axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from weft.runtime.by_hand.instructions import KernelCall
from weft.runtime.by_hand.kernels.registry import KERNELS, back_of


def _standardized(x: Tensor, call: KernelCall) -> Tensor:
    centred = x - x.mean(-1, keepdim=True) if call.attributes.get("centred", True) else x
    return centred * torch.rsqrt((centred**2).mean(-1, keepdim=True) + call.attributes.get("eps", 1e-5))


def _norm(call: KernelCall) -> Callable[..., Tensor]:
    def run(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        y = _standardized(x, call)
        y = y if weight is None else y * weight
        return y if bias is None else y + bias

    return run


def _norm_grad_weight(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    gradient, x = inputs
    return ((gradient * _standardized(x, call)).reshape(-1, x.shape[-1]).sum(0),)


KERNELS.update({
    "norm": lambda inputs, call: (_norm(call)(*inputs),), "norm_grad_input": back_of(_norm),
    "norm_grad_weight": _norm_grad_weight,
})
