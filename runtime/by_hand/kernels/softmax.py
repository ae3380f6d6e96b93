"""Softmax and gates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from weft.runtime.by_hand.instructions import KernelCall
from weft.runtime.by_hand.kernels.registry import KERNELS, axis_of, back_of


def _hidden(call: KernelCall, query: str, key: str, like: Tensor) -> Tensor:
    """Which keys come after which queries: [query, key]."""
    rows = torch.arange(call.sizes[query], device=like.device) + call.starts.get(query, 0)
    columns = torch.arange(call.sizes[key], device=like.device) + call.starts.get(key, 0)
    return columns[None, :] > rows[:, None]


def _softmax(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    x = inputs[0]
    if call.attributes.get("causal"):
        query, key = call.attributes["causal"]
        hidden = _hidden(call, query, key, x)
        rows, columns = axis_of(call, query), axis_of(call, key)
        if rows > columns:
            hidden = hidden.T
        x = x.masked_fill(hidden.reshape([n if i in (rows, columns) else 1 for i, n in enumerate(x.shape)]), -math.inf)
    return (torch.softmax(x, axis_of(call, call.attributes["over"])),)


def _softmax_grad(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    gradient, y = inputs
    return (y * (gradient - (gradient * y).sum(axis_of(call, call.attributes["over"]), keepdim=True)),)


def _log_softmax_grad(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    gradient, y = inputs
    return (gradient - y.exp() * gradient.sum(axis_of(call, call.attributes["over"]), keepdim=True),)


def _top_k(call: KernelCall) -> Callable[..., Tensor]:
    def run(x: Tensor) -> Tensor:
        least = torch.sort(x, dim=-1, descending=True, stable=True).indices[..., :call.attributes["k"]]
        kept = torch.zeros_like(x, dtype=torch.bool).scatter(-1, least, True)
        return torch.softmax(x.masked_fill(~kept, -math.inf), -1)

    return run


KERNELS.update({
    "softmax": _softmax, "softmax_grad": _softmax_grad,
    "log_softmax": lambda inputs, call: (torch.log_softmax(inputs[0], axis_of(call, call.attributes["over"])),),
    "log_softmax_grad": _log_softmax_grad,
    "top_k": lambda inputs, call: (_top_k(call)(*inputs),), "top_k_grad": back_of(_top_k),
})
