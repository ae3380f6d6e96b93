"""What stages compute on a rank, with torch: the kinds of :class:`weft.models.communication.program.Stage` by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TypeAlias

import torch
from torch import Tensor

from weft.runtime.communication.instructions import Call

__all__ = ["KERNELS", "Kernel", "dropped"]

#: ``kernel(call, inputs)``.
Kernel: TypeAlias = Callable[[Call, Sequence[Tensor]], Tensor]


def dropped(places: Tensor, rate: float, seed: int) -> Tensor:
    """Of elements by their place in the whole tensor: 0 with probability ``rate``, else 1 / (1 - ``rate``).

    Places are hashed by the finalizer of SplitMix64 (Steele et al., OOPSLA 2014), in numbers modulo 2**64, so that
    every rank knows what is dropped of any slice.
    """
    bits = places.to(torch.int64) + _wrapped((seed + 1) * 0x9E3779B97F4A7C15)
    bits = (bits ^ _shifted(bits, 30)) * _wrapped(0xBF58476D1CE4E5B9)
    bits = (bits ^ _shifted(bits, 27)) * _wrapped(0x94D049BB133111EB)
    bits = bits ^ _shifted(bits, 31)
    share = _shifted(bits, 11).to(torch.float64) / 2**53
    return (share >= rate).to(torch.float64) / (1.0 - rate)


def _wrapped(number: int) -> int:
    """As a signed number of 64 bits."""
    return (number + 2**63) % 2**64 - 2**63


def _shifted(bits: Tensor, by: int) -> Tensor:
    """To the right, with zeros from the left."""
    return torch.bitwise_and(bits >> by, 2 ** (64 - by) - 1)


def _pointwise(call: Call, inputs: Sequence[Tensor]) -> Tensor:
    assert call.function is not None
    widest = _widest(inputs)  # torch would not have a single number widen a tensor
    found = call.function(torch, *(tensor.to(widest) for tensor in inputs), **call.attributes)
    assert isinstance(found, Tensor)
    return found.to(widest)


def _widest(inputs: Sequence[Tensor]) -> torch.dtype:
    return reduce(torch.promote_types, (tensor.dtype for tensor in inputs))


def _matmul(call: Call, inputs: Sequence[Tensor]) -> Tensor:
    left, right = inputs
    both = _widest(inputs)
    return left.to(both) @ right.to(both)


#: By kind; what needs to know the ranks is of :mod:`weft.runtime.communication.calls`.
KERNELS: Mapping[str, Kernel] = {
    "pointwise": _pointwise, "matmul": _matmul, "update": lambda call, inputs: inputs[1]}
