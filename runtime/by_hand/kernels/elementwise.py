"""Functions of one element of each of several tensors, aligned by the names of the output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from weft.runtime.by_hand.instructions import KernelCall
from weft.runtime.by_hand.kernels.registry import KERNELS, Run, flattened, shape_of

__all__ = ["aligned", "summed"]


def aligned(call: KernelCall, tensor: Tensor, axes: Sequence[Sequence[str]], names: Sequence[str]) -> Tensor:
    """``tensor`` with an axis for each of ``names``, of one element where it has not that name."""
    own = [name for axis in axes for name in axis]
    order = sorted(range(len(own)), key=lambda i: names.index(own[i]))
    flat = flattened(call, tensor, axes).permute(order)
    return flat.reshape([call.sizes[name] if name in own else 1 for name in names])


def summed(call: KernelCall, tensor: Tensor, names: Sequence[str], axes: Sequence[Sequence[str]]) -> Tensor:
    """``tensor`` with an axis for each of ``names``, added up over those that ``axes`` have not."""
    wanted = [name for axis in axes for name in axis]
    gone = [i for i, name in enumerate(names) if name not in wanted]
    whole = tensor.expand([call.sizes[name] for name in names])
    kept = [name for name in names if name in wanted]
    total = whole.sum(gone) if gone else whole
    return total.permute([kept.index(name) for name in wanted]).reshape(shape_of(call, axes))


def _choose(mask: Tensor, a: Any, b: Any) -> Tensor:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        dtype = torch.promote_types(a.dtype, b.dtype)
        return torch.where(mask != 0, a.to(dtype), b.to(dtype))
    return torch.where(mask != 0, a, b)


def _both(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """For a number in place of a tensor, too."""
    def run(a: Any, b: Any) -> Tensor:
        like = a if isinstance(a, Tensor) else b
        one, other = (value if isinstance(value, Tensor) else torch.tensor(value, dtype=like.dtype, device=like.device)
                      for value in (a, b))
        return function(one, other)

    return run


FUNCTIONS: Mapping[str, Callable[..., Tensor]] = {
    "where": _choose, "times": lambda a, b: a * b, "maximum": _both(torch.maximum), "minimum": _both(torch.minimum),
    "power": torch.pow, "clamp": lambda x, low, high: torch.clamp(x, low, high), "softplus": functional.softplus,
    "leaky_relu": functional.leaky_relu, "elu": functional.elu,
    "smooth": lambda x, b: functional.huber_loss(x, torch.zeros_like(x), "none", b) / b,
    "floor_divide": torch.floor_divide, "remainder": torch.remainder, "lt": torch.lt, "le": torch.le, "gt": torch.gt,
    "ge": torch.ge, "eq": torch.eq, "ne": torch.ne, "and": torch.logical_and, "or": torch.logical_or,
    "xor": torch.logical_xor, "not": torch.logical_not, "rsqrt": torch.rsqrt, "sin": torch.sin, "cos": torch.cos,
    "abs": torch.abs, "erf": torch.erf, "log1p": torch.log1p, "expm1": torch.expm1, "hardtanh": functional.hardtanh,
    "hardsigmoid": lambda x: torch.clamp(x / 6 + 0.5, 0, 1), "hardswish": functional.hardswish,
    "log_sigmoid": functional.logsigmoid, "floor": torch.floor, "sign": torch.sign, "isnan": torch.isnan}


def _operands(inputs: Sequence[Tensor], call: KernelCall, first: int, names: Sequence[str]) -> list[Any]:
    given = iter([aligned(call, tensor, axes, names) for tensor, axes in zip(
        inputs[first:], call.inputs[first:], strict=True)])
    places = call.attributes.get("constants") or (None,) * (len(inputs) - first)
    return [next(given) if constant is None else constant for constant in places]


def _value(function: Callable[..., Tensor]) -> Run:
    def run(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
        names = [name for axis in call.outputs[0] for name in axis]
        made = function(*_operands(inputs, call, 0, names))
        wanted = getattr(torch, call.attributes.get("dtype", "float32"))
        if wanted.is_floating_point != made.is_floating_point():
            made = made.to(wanted)  # of numbers alone, torch takes its default type
        return (made.expand([call.sizes[name] for name in names]).reshape(shape_of(call, call.outputs[0])),)

    return run


def _back(function: Callable[..., Tensor], place: int) -> Run:
    def run(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
        names = [name for axis in call.inputs[0] for name in axis]
        operands = _operands(inputs, call, 1, names)
        gradient = aligned(call, inputs[0], call.inputs[0], names)
        with torch.enable_grad():
            operands[place] = operands[place].detach().expand_as(gradient).requires_grad_(True)
            found, = torch.autograd.grad(function(*operands), operands[place], gradient)
        return (summed(call, found, names, call.outputs[0]),)

    return run


for _kind, _function in FUNCTIONS.items():
    KERNELS[_kind] = _value(_function)
    for _place in range(3):
        KERNELS[f"{_kind}_grad{_place}"] = _back(_function, _place)
