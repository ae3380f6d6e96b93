"""Elements by indices that are computed, and the order of elements.

Where one axis is indexed, a part of it gives zeros for what is not of it, so that parts are terms of a sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.models.transform.annotation import Annotation
from weft.models.transform.kernels.registry import KERNELS, Array, Call, Gradient, Kernel, of_input


def _own(indices: Array, name: str, call: Call) -> tuple[Array, Array]:
    """Indices within this part of the indexed name, and which of them are; those below 0 count from the end."""
    whole = indices.astype(int)
    whole = np.where(whole < 0, whole + call.attributes["length"], whole) - call.starts.get(name, 0)
    here = (whole >= 0) & (whole < call.sizes[name])
    return np.where(here, whole, 0), here


def _at(x: Array, axes: Sequence[int], indices: Sequence[Array]) -> tuple[Any, ...]:
    full: list[Any] = [slice(None)] * x.ndim
    for axis, index in zip(axes, indices, strict=True):
        full[axis] = index
    return tuple(full)


def _spread(here: Array, axis: int, rank: int) -> Array:
    """Truths of indices at ``axis``, to multiply what has ``rank`` axes by."""
    return here.reshape((1,) * axis + here.shape + (1,) * (rank - axis - here.ndim))


def _index(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    x, axes = arrays[0], call.attributes["at"]
    if len(axes) > 1:
        return (x[_at(x, axes, [one.astype(int) for one in arrays[1:]])],)
    rows, here = _own(arrays[1], call.annotation.inputs[0][axes[0]][0], call)
    made = x[_at(x, axes, [rows])]
    return (made * _spread(here, axes[0], made.ndim),)


def _index_grad(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    gradient, axes = arrays[0], call.attributes["at"]
    made = np.zeros(Annotation.shape(call.annotation.outputs[0], call.sizes))
    if len(axes) > 1:
        np.add.at(made, _at(made, axes, [one.astype(int) for one in arrays[1:]]), gradient)
        return (made,)
    rows, here = _own(arrays[1], call.annotation.outputs[0][axes[0]][0], call)
    np.add.at(made, _at(made, axes, [rows]), gradient * _spread(here, axes[0], gradient.ndim))
    return (made,)


def _index_gradient(i: int, count: int, attributes: Mapping[str, Any]) -> Gradient | None:
    return Gradient("index_grad", tuple(f"i{n}" for n in range(1, count)), attributes) if i == 0 else None


def _gather(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    axis = call.attributes["axis"]
    rows, here = _own(arrays[1], call.annotation.inputs[0][axis][0], call)
    return (np.take_along_axis(arrays[0], rows, axis) * here,)


def _gather_grad(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    axis = call.attributes["axis"]
    rows, here = _own(arrays[1], call.annotation.outputs[0][axis][0], call)
    made = np.zeros(Annotation.shape(call.annotation.outputs[0], call.sizes))
    grid: list[Any] = list(np.indices(rows.shape, sparse=True))
    grid[axis] = rows
    np.add.at(made, tuple(grid), arrays[0] * here)
    return (made,)


def _put(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    """``x`` with what the indices name replaced: by the third tensor, or by ``value``."""
    axis = call.attributes["axis"]
    made = np.array(arrays[0], float)
    rows = arrays[1].astype(int)
    np.put_along_axis(made, rows, arrays[2] if len(arrays) > 2 else call.attributes["value"], axis)
    return (made,)


def _put_gradient(i: int, count: int, attributes: Mapping[str, Any]) -> Gradient | None:
    if i == 0:
        return Gradient("put", ("i1",), {**attributes, "value": 0.0})
    return Gradient("gather", ("i1",), attributes) if i == 2 else None


def _fill_in(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    """What a mask names replaced by the elements of the third tensor, one after the other."""
    made, chosen = np.array(arrays[0], float), arrays[1] != 0
    made[chosen] = arrays[2].reshape(-1)[:chosen.sum()]
    return (made,)


def _fill_in_source(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    gradient, chosen = arrays[0], arrays[1] != 0
    made = np.zeros(Annotation.shape(call.annotation.outputs[0], call.sizes))
    made.reshape(-1)[:chosen.sum()] = gradient[chosen]
    return (made,)


def _fill_in_gradient(i: int, count: int, attributes: Mapping[str, Any]) -> Gradient | None:
    return Gradient(f"fill_in_grad{i}", ("i1",)) if i != 1 else None


def _places(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    """Where the ``count`` largest (or smallest) are along ``axis``, the first of equal ones first."""
    axis, x = call.attributes["axis"], np.asarray(arrays[0], float)
    order = np.argsort(-x if call.attributes["largest"] else x, axis=axis, kind="stable")
    return (np.take(order, range(call.attributes["count"]), axis=axis),)


KERNELS.update({
    "index": Kernel(_index, _index_gradient),
    "index_grad": Kernel(_index_grad, lambda i, count, attributes: Gradient(
        "index", tuple(f"i{n}" for n in range(1, count)), attributes) if i == 0 else None),
    "gather": Kernel(_gather, of_input("gather_grad", ("i1",))),
    "gather_grad": Kernel(_gather_grad, of_input("gather", ("i1",))),
    "put": Kernel(_put, _put_gradient),
    "places": Kernel(_places),
    "fill_in": Kernel(_fill_in, _fill_in_gradient),
    "fill_in_grad0": Kernel(lambda arrays, call: (arrays[0] * (arrays[1] == 0),)),
    "fill_in_grad2": Kernel(_fill_in_source),
})
