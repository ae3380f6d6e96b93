"""Softmax, attention, gates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from weft.models.transform.kernels.registry import KERNELS, Array, Call, Gradient, Kernel, of_input

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


def _attended(q: Array, k: Array, call: Call, at: int) -> Array:
    """Weights of keys; ``at``: which of the annotation's inputs the queries are."""
    weights = np.einsum("bhsd,bhtd->bhst", q, k) * call.attributes.get("scale", 1 / math.sqrt(q.shape[-1]))
    if call.attributes.get("causal"):
        query, key = (call.annotation.inputs[at + i][2][0] for i in (0, 1))
        weights = np.where(_hidden(call, query, key, 4, 2, 3), -np.inf, weights)
    return softmax_over(weights, (3,))


def _attention(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    q, k, v = arrays
    return (np.einsum("bhst,bhte->bhse", _attended(q, k, call, 0), v),)


def _attention_grad(which: int) -> Callable[[Sequence[Array], Call], tuple[Array, ...]]:
    def run(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
        gradient, q, k, v = arrays
        weights = _attended(q, k, call, 1)
        if which == 2:
            return (np.einsum("bhst,bhse->bhte", weights, gradient),)
        back = np.einsum("bhse,bhte->bhst", gradient, v)
        back = weights * (back - (back * weights).sum(axis=3, keepdims=True))
        back = back * call.attributes.get("scale", 1 / math.sqrt(q.shape[-1]))
        return (np.einsum("bhst,bhtd->bhsd", back, k) if which == 0 else np.einsum("bhst,bhsd->bhtd", back, q),)

    return run


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
    "attention": Kernel(_attention, lambda i, count, attributes: Gradient(
        f"attention_grad{i}", ("i0", "i1", "i2"), attributes)),
    **{f"attention_grad{i}": Kernel(_attention_grad(i)) for i in range(3)},
    "top_k": Kernel(lambda arrays, call: (_top_k(arrays[0], call.attributes["k"]),), of_input("top_k_grad", ("i0",))),
    "top_k_grad": Kernel(_top_k_grad),
})
