"""Maps along one axis that are fixed: elements picked by place, weighted sums of elements, running sums, extremes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.models.transform.annotation import Annotation
from weft.models.transform.kernels.registry import KERNELS, Array, Call, Gradient, Kernel, of_input


def _pick(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    """By ``indices`` along ``axis``; ``fill`` where an index is -1."""
    axis, indices = call.attributes["axis"], np.asarray(call.attributes["indices"], int)
    made = np.take(arrays[0], np.maximum(indices, 0), axis=axis) if arrays[0].shape[axis] else np.zeros(
        Annotation.shape(call.annotation.outputs[0], call.sizes))
    there = (indices >= 0).reshape([-1 if i == axis else 1 for i in range(made.ndim)])
    return (np.where(there, made, call.attributes.get("fill", 0.0)),)


def _pick_grad(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    axis, indices = call.attributes["axis"], np.asarray(call.attributes["indices"], int)
    made = np.zeros(Annotation.shape(call.annotation.outputs[0], call.sizes))
    there = np.flatnonzero(indices >= 0)
    np.add.at(np.moveaxis(made, axis, 0), indices[there], np.moveaxis(arrays[0], axis, 0)[there])
    return (made,)


def _mix(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    """``weights``: for each element that comes out, pairs of an element that comes in and its share."""
    axis = call.attributes["axis"]
    made = np.tensordot(_matrix(call.attributes, arrays[0].shape[axis]), arrays[0], ([1], [axis]))
    return (np.moveaxis(made, 0, axis),)


def _mix_grad(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    axis = call.attributes["axis"]
    count = Annotation.shape(call.annotation.outputs[0], call.sizes)[axis]
    made = np.tensordot(_matrix(call.attributes, count), arrays[0], ([0], [axis]))
    return (np.moveaxis(made, 0, axis),)


def _matrix(attributes: Mapping[str, Any], count: int) -> Array:
    rows = attributes["weights"]
    found = np.zeros((len(rows), count))
    for i, row in enumerate(rows):
        for at, share in row:
            found[i, at] += share
    return found


def _running(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    axis, x = call.attributes["axis"], arrays[0]
    if call.attributes.get("backwards"):
        return (np.flip(np.cumsum(np.flip(x, axis), axis), axis),)
    return (np.cumsum(x, axis),)


def _running_gradient(i: int, count: int, attributes: Mapping[str, Any]) -> Gradient:
    return Gradient("running_sum", (), {**attributes, "backwards": not attributes.get("backwards", False)})


def _extreme(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    """The largest, or smallest, over the names ``over``."""
    flat = call.flat(np.asarray(arrays[0], float), call.annotation.inputs[0])
    names = [name for axis in call.annotation.inputs[0] for name in axis]
    over = tuple(names.index(name) for name in call.attributes["over"])
    made = flat.max(axis=over) if call.attributes["largest"] else flat.min(axis=over)
    return (call.grouped(made, call.annotation.outputs[0]),)


def _extreme_grad(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    """Shared by all that are as large."""
    gradient, x = arrays
    flat = call.flat(x, call.annotation.inputs[1])
    names = [name for axis in call.annotation.inputs[1] for name in axis]
    over = tuple(names.index(name) for name in call.attributes["over"])
    most = flat.max(axis=over, keepdims=True) if call.attributes["largest"] else flat.min(axis=over, keepdims=True)
    met = (flat == most).astype(float)
    back = met / met.sum(axis=over, keepdims=True) * gradient.reshape(most.shape)
    return (call.grouped(back, call.annotation.outputs[0]),)


KERNELS.update({
    "pick": Kernel(_pick, of_input("pick_grad", ())),
    "pick_grad": Kernel(_pick_grad),
    "mix": Kernel(_mix, of_input("mix_grad", ())),
    "mix_grad": Kernel(_mix_grad),
    "extreme": Kernel(_extreme, of_input("extreme_grad", ("i0",))),
    "extreme_grad": Kernel(_extreme_grad),
    "running_sum": Kernel(_running, _running_gradient),
})
