"""Kernels by name, and what they are made with: shapes of parts, gradients by autograd."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from weft.runtime.by_hand.instructions import KernelCall

__all__ = ["KERNELS", "Run", "axis_of", "back", "back_of", "flattened", "in_torch", "of", "run_kernel", "shape_of"]

#: Computes the outputs of a part from its inputs.
Run: TypeAlias = Callable[[Sequence[Tensor], KernelCall], tuple[Tensor, ...]]
KERNELS: dict[str, Run] = {}
#: Inputs of a user's operator that may have a gradient, at most.
_INPUTS = 8


def run_kernel(call: KernelCall, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The outputs of a part. Raises ``ValueError`` for a kernel that torch has no function for here."""
    if call.kind not in KERNELS:
        raise ValueError(f"the kernel {call.kind!r} cannot be run with torch: there is no function for it")
    with torch.no_grad():
        return KERNELS[call.kind](inputs, call)


def in_torch(kind: str) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Register a function of tensors as what ranks run for a user's operator of that name
    (:func:`weft.models.transform.kernels.operator`). Its gradients are autograd's, of the inputs that the operator
    gives one for. Raises ``ValueError`` for a name that has a kernel already."""
    def registered(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        if kind in KERNELS:
            raise ValueError(f"there is a kernel {kind!r} for torch already")
        KERNELS[kind] = lambda inputs, call: (function(*inputs, **call.attributes),)
        for place in range(_INPUTS):
            KERNELS[f"{kind}_grad{place}"] = back_of(
                lambda call: lambda *inputs: function(*inputs, **call.attributes), place)
        return function

    return registered


def shape_of(call: KernelCall, tensor: Sequence[Sequence[str]]) -> list[int]:
    """The shape of a part's tensor whose dimensions have these names."""
    return [math.prod(call.sizes[name] for name in axis) for axis in tensor]


def flattened(call: KernelCall, tensor: Tensor, axes: Sequence[Sequence[str]]) -> Tensor:
    """One axis a name."""
    return tensor.reshape([call.sizes[name] for axis in axes for name in axis])


def back(function: Callable[..., Tensor], inputs: Sequence[Tensor], which: int) -> Tensor:
    """The gradient of one input of ``function``; the output's is the first of ``inputs``."""
    with torch.enable_grad():
        given = [tensor.detach() for tensor in inputs[1:]]
        given[which].requires_grad_(True)
        found, = torch.autograd.grad(function(*given), given[which], inputs[0])
    return found


def of(function: Callable[..., Tensor]) -> Run:
    """A function of tensors alone, as a kernel."""
    return lambda inputs, call: (function(*inputs),)


def back_of(function: Callable[[KernelCall], Callable[..., Tensor]], which: int = 0) -> Run:
    """The gradient of one input of a function that a call makes, as a kernel."""
    return lambda inputs, call: (back(function(call), inputs, which),)


def axis_of(call: KernelCall, name: str, tensor: int = 0) -> int:
    """Which axis of an input a name is."""
    return next(i for i, axis in enumerate(call.inputs[tensor]) if name in axis)
