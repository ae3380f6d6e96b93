"""Softmax and gates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.models.transform.kernels.registry import KERNELS, Array, Call, Kernel, of_input

__all__ = ["softmax_over"]


def softmax_over(x: Array, axes: tuple[int, ...]) -> Array:
    e = np.exp(x - x.max(axis=axes, keepdims=True))
    return np.asarray(e / e.sum(axis=axes, keepdims=True))


def _softmax(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    x = arrays[0]
    if call.attributes.get("causal"):
        query, key = call.attributes["causal"]
        rows, columns = call.axes([query])[0], call.axes([key])[0]
        x = np.where(_hidden(call, query, key, x.ndim, rows, columns), -np.inf, x)
    return (softmax_over(x, call.axes([call.attributes["over"]])),)


def _hidden(call: Call, query: str, key: str, dimensions: int, rows: int, columns: int) -> Array:
    at = [1] * dimensions
    at[rows] = -1
    mine = (np.arange(call.sizes[query]) + call.starts.get(query, 0)).reshape(at)
    at = [1] * dimensions
    at[columns] = -1
    return np.asarray((np.arange(call.sizes[key]) + call.starts.get(key, 0)).reshape(at) > mine)


def _softmax_grad(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    gradient, y = arrays
    axes = call.axes([call.attributes["over"]])
    return (y * (gradient - (gradient * y).sum(axis=axes, keepdims=True)),)


def _log_softmax(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    axes = call.axes([call.attributes["over"]])
    x = arrays[0] - arrays[0].max(axis=axes, keepdims=True)
    return (x - np.log(np.exp(x).sum(axis=axes, keepdims=True)),)


def _log_softmax_grad(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    gradient, y = arrays
    return (gradient - np.exp(y) * gradient.sum(axis=call.axes([call.attributes["over"]]), keepdims=True),)


def _top_k(x: Array, k: int) -> Array:
    """Weights of the k largest along the last axis, the others 0."""
    order = np.argsort(-x, axis=-1, kind="stable")[..., :k]
    kept = np.zeros(x.shape, bool)
    np.put_along_axis(kept, order, True, axis=-1)
    return softmax_over(np.where(kept, x, -np.inf), (x.ndim - 1,))


def _top_k_grad(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    y = _top_k(arrays[1], call.attributes["k"])
    return (y * (arrays[0] - (arrays[0] * y).sum(axis=-1, keepdims=True)),)


KERNELS.update({
    "softmax": Kernel(_softmax, of_input("softmax_grad", ("o0",))),
    "softmax_grad": Kernel(_softmax_grad),
    "log_softmax": Kernel(_log_softmax, of_input("log_softmax_grad", ("o0",))),
    "log_softmax_grad": Kernel(_log_softmax_grad),
    "top_k": Kernel(lambda arrays, call: (_top_k(arrays[0], call.attributes["k"]),), of_input("top_k_grad", ("i0",))),
    "top_k_grad": Kernel(_top_k_grad),
})
