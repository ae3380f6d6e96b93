"""Sums of products, and sums."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from weft.runtime.by_hand.instructions import KernelCall
from weft.runtime.by_hand.kernels.registry import KERNELS, flattened, shape_of


def _einsum(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    names = list(dict.fromkeys(name for tensor in (*call.inputs, *call.outputs) for axis in tensor for name in axis))
    letters = {name: chr(97 + i) for i, name in enumerate(names)}
    given = {name for tensor in call.inputs for axis in tensor for name in axis}
    wanted = [name for axis in call.outputs[0] for name in axis]
    left = ",".join("".join(letters[name] for axis in tensor for name in axis) for tensor in call.inputs)
    right = "".join(letters[name] for name in wanted if name in given)
    flat = [flattened(call, tensor, axes) for tensor, axes in zip(inputs, call.inputs, strict=True)]
    if len(flat) == 1 and given <= set(wanted) and call.attributes.get("scale", 1.0) == 1.0:
        own = [name for axis in call.inputs[0] for name in axis]  # nothing is added up
        made = flat[0].permute([own.index(name) for name in wanted if name in given])
        made = made.reshape([call.sizes[name] if name in given else 1 for name in wanted])
        return (made.expand([call.sizes[name] for name in wanted]).reshape(shape_of(call, call.outputs[0])),)
    dtype = functools.reduce(torch.promote_types, [tensor.dtype for tensor in flat])
    flat = [tensor.to(dtype) for tensor in flat]  # einsum has none of its own for integers beside numbers
    made = torch.einsum(f"{left}->{right}", *flat)
    if call.attributes.get("scale", 1.0) != 1.0:
        made = made * call.attributes["scale"]
    made = made.reshape([call.sizes[name] if name in given else 1 for name in wanted])
    return (made.expand([call.sizes[name] for name in wanted]).reshape(shape_of(call, call.outputs[0])),)


def _add(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    names = [name for axis in call.outputs[0] for name in axis]
    total: Tensor | None = None
    signs = call.attributes.get("signs") or [1.0] * len(inputs)
    for tensor, axes, sign in zip(inputs, call.inputs, signs, strict=True):
        own = [name for axis in axes for name in axis]
        order = sorted(range(len(own)), key=lambda i: names.index(own[i]))
        flat = flattened(call, tensor, axes).permute(order)
        flat = flat.reshape([call.sizes[name] if name in own else 1 for name in names])
        if sign != 1:
            flat = flat * _fitting(sign, flat)
        total = flat if total is None else total + flat
    assert total is not None
    if call.attributes.get("constant"):
        total = total + _fitting(call.attributes["constant"], total)
    return (total.expand([call.sizes[name] for name in names]).reshape(shape_of(call, call.outputs[0])),)


def _fitting(number: float, like: Tensor) -> float:
    """A whole number beside whole numbers, so that they stay such."""
    return int(number) if not like.is_floating_point() and number == int(number) else number


KERNELS.update({"einsum": _einsum, "add": _add})
