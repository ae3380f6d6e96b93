"""Elements by indices that are computed, and the order of elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from weft.runtime.by_hand.instructions import KernelCall
from weft.runtime.by_hand.kernels.registry import KERNELS, shape_of


def _own(indices: Tensor, name: str, call: KernelCall) -> tuple[Tensor, Tensor]:
    whole = indices.long()
    whole = torch.where(whole < 0, whole + call.attributes["length"], whole) - call.starts.get(name, 0)
    here = (whole >= 0) & (whole < call.sizes[name])
    return whole.where(here, torch.zeros_like(whole)), here


def _at(rank: int, axes: Sequence[int], indices: Sequence[Tensor]) -> tuple[Any, ...]:
    full: list[Any] = [slice(None)] * rank
    for axis, index in zip(axes, indices, strict=True):
        full[axis] = index
    return tuple(full)


def _kept(value: Tensor, here: Tensor, axis: int) -> Tensor:
    """Zeros for what is not of this part."""
    shape = [1] * axis + list(here.shape) + [1] * (value.ndim - axis - here.ndim)
    return value.masked_fill(~here.reshape(shape), 0)


def _index(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    x, axes = inputs[0], call.attributes["at"]
    if len(axes) > 1:
        return (x[_at(x.ndim, axes, [one.long() for one in inputs[1:]])],)
    rows, here = _own(inputs[1], call.inputs[0][axes[0]][0], call)
    return (_kept(x[_at(x.ndim, axes, [rows])], here, axes[0]),)


def _index_grad(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    gradient, axes = inputs[0], call.attributes["at"]
    made = gradient.new_zeros(shape_of(call, call.outputs[0]))
    indices = [one.long() for one in inputs[1:]]
    if len(axes) == 1:
        rows, here = _own(inputs[1], call.outputs[0][axes[0]][0], call)
        gradient, indices = _kept(gradient, here, axes[0]), [rows]
    around: list[Tensor | None] = [None] * made.ndim
    for axis, index in zip(axes, indices, strict=True):
        around[axis] = index
    return (torch.ops.aten.index_put(made, around, gradient, True),)


def _gather(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    axis = call.attributes["axis"]
    rows, here = _own(inputs[1], call.inputs[0][axis][0], call)
    return (inputs[0].gather(axis, rows).masked_fill(~here, 0),)


def _gather_grad(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    axis = call.attributes["axis"]
    rows, here = _own(inputs[1], call.outputs[0][axis][0], call)
    made = inputs[0].new_zeros(shape_of(call, call.outputs[0]))
    return (made.scatter_add(axis, rows, inputs[0].masked_fill(~here, 0)),)


def _put(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    axis, rows = call.attributes["axis"], inputs[1].long()
    if len(inputs) > 2:
        return (inputs[0].scatter(axis, rows, inputs[2].to(inputs[0].dtype)),)
    return (inputs[0].scatter(axis, rows, call.attributes["value"]),)


def _fill_in_source(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    made = inputs[0].new_zeros(shape_of(call, call.outputs[0]))
    found = inputs[0][inputs[1] != 0]
    made.view(-1)[:len(found)] = found
    return (made,)


def _places(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    axis = call.attributes["axis"]
    order = torch.sort(inputs[0], dim=axis, descending=call.attributes["largest"], stable=True).indices
    return (order.narrow(axis, 0, call.attributes["count"]),)


KERNELS.update({"index": _index, "index_grad": _index_grad, "gather": _gather, "gather_grad": _gather_grad,
                "put": _put, "places": _places, "fill_in_grad2": _fill_in_source,
                "fill_in": lambda inputs, call: (inputs[0].masked_scatter(inputs[1] != 0, inputs[2]),),
                "fill_in_grad0": lambda inputs, call: (inputs[0].masked_fill(inputs[1] != 0, 0),)})
