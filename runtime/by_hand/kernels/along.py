"""Maps along one axis that are fixed: elements picked by place, weighted sums of elements, running sums, extremes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from weft.runtime.by_hand.instructions import KernelCall
from weft.runtime.by_hand.kernels.registry import KERNELS, back, flattened, shape_of


def _pick(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    axis, x = call.attributes["axis"], inputs[0]
    indices = torch.tensor(call.attributes["indices"], device=x.device)
    if not x.shape[axis]:
        return (x.new_full(shape_of(call, call.outputs[0]), call.attributes.get("fill", 0)),)
    made = x.index_select(axis, indices.clamp(min=0))
    gone = (indices < 0).reshape([-1 if i == axis else 1 for i in range(made.ndim)])
    return (made.masked_fill(gone, call.attributes.get("fill", 0)),)


def _pick_grad(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    axis, gradient = call.attributes["axis"], inputs[0]
    indices = torch.tensor(call.attributes["indices"], device=gradient.device)
    there = (indices >= 0).nonzero()[:, 0]
    made = gradient.new_zeros(shape_of(call, call.outputs[0]))
    return (made.index_add(axis, indices[there], gradient.index_select(axis, there)),)


def _matrix(call: KernelCall, like: Tensor, count: int) -> Tensor:
    rows = call.attributes["weights"]
    found = torch.zeros(len(rows), count, dtype=like.dtype)
    for i, row in enumerate(rows):
        for at, share in row:
            found[i, at] += share
    return found.to(like.device)


def _mix(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    axis, x = call.attributes["axis"], inputs[0]
    return (torch.tensordot(_matrix(call, x, x.shape[axis]), x, ([1], [axis])).movedim(0, axis),)


def _mix_grad(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    axis, gradient = call.attributes["axis"], inputs[0]
    matrix = _matrix(call, gradient, shape_of(call, call.outputs[0])[axis])
    return (torch.tensordot(matrix, gradient, ([0], [axis])).movedim(0, axis),)


def _running(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    axis, x = call.attributes["axis"], inputs[0]
    if call.attributes.get("backwards"):
        return (x.flip(axis).cumsum(axis).flip(axis),)
    return (x.cumsum(axis),)


def _extreme(call: KernelCall, x: Tensor, at: int) -> Tensor:
    names = [name for axis in call.inputs[at] for name in axis]
    over = [names.index(name) for name in call.attributes["over"]]
    flat = flattened(call, x, call.inputs[at])
    if not over:
        return flat
    if flat.dtype == torch.bool:
        return flat.long().amax(over).bool() if call.attributes["largest"] else flat.long().amin(over).bool()
    return flat.amax(over) if call.attributes["largest"] else flat.amin(over)


def _extreme_grad(inputs: Sequence[Tensor], call: KernelCall) -> tuple[Tensor, ...]:
    made = _extreme(call, inputs[1], 1)
    return (back(lambda x: _extreme(call, x, 1), [inputs[0].reshape(made.shape), inputs[1]], 0),)


KERNELS.update({
    "extreme": lambda inputs, call: (_extreme(call, inputs[0], 0).reshape(shape_of(call, call.outputs[0])),),
    "extreme_grad": _extreme_grad,
    "pick": _pick, "pick_grad": _pick_grad, "mix": _mix, "mix_grad": _mix_grad, "running_sum": _running,
})
