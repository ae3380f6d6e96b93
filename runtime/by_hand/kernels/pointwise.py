"""Functions of one element."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from weft.runtime.by_hand.kernels.registry import KERNELS, back_of, of

_UNARY: Mapping[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x * 1.0, "relu": torch.relu, "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"), "silu": functional.silu, "sigmoid": torch.sigmoid,
    "tanh": torch.tanh, "exp": torch.exp, "square": torch.square, "sqrt": torch.sqrt, "log": torch.log,
    "reciprocal": torch.reciprocal}


for _kind, _function in _UNARY.items():
    KERNELS[_kind] = of(_function)
    KERNELS[f"{_kind}_grad"] = back_of(lambda call, function=_function: function)  # type: ignore[misc]
