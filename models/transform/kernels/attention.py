"""Attention: queries, keys and values, and a mask where there is one: truths, or numbers that are added.

What stands before the last two axes are names that queries have all of; keys, values and masks may lack some, as keys
that several heads share do. A query that sees no key gets zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.models.transform.annotation import Axis, Dimensions
from weft.models.transform.kernels.elementwise import aligned, summed
from weft.models.transform.kernels.registry import KERNELS, Array, Call, Gradient, Kernel


class _Names(NamedTuple):
    """Names before the last two axes, of a query, of a key, and of both kinds of widths."""

    lead: list[str]
    query: str
    key: str
    width: list[str]
    value: list[str]

    @property
    def scores(self) -> list[str]:
        return [*self.lead, self.query, self.key]


def _names(how: Sequence[Dimensions]) -> _Names:
    q, k, v = how[:3]
    return _Names([name for axis in q[:-2] for name in axis], _one(q[-2]), _one(k[-2]), list(q[-1]), list(v[-1]))


def _one(axis: Axis) -> str:
    return axis[0]


def _weights(arrays: Sequence[Array], how: Sequence[Dimensions], call: Call) -> tuple[_Names, list[Array], Array]:
    """Names, all tensors aligned, and the weight of each key for each query."""
    names = _names(how)
    q = aligned(call, arrays[0], how[0], [*names.lead, names.query, *names.width])
    k = aligned(call, arrays[1], how[1], [*names.lead, names.key, *names.width])
    v = aligned(call, arrays[2], how[2], [*names.lead, names.key, *names.value])
    scores = q @ np.swapaxes(k, -1, -2) * _scale(call, q)
    if len(arrays) > 3:
        mask = aligned(call, arrays[3], how[3], names.scores)
        scores = np.where(mask != 0, scores, -np.inf) if call.attributes["mask"] == "truths" else scores + mask
    if call.attributes.get("causal"):
        rows = np.arange(call.sizes[names.query]) + call.starts.get(names.query, 0)
        columns = np.arange(call.sizes[names.key]) + call.starts.get(names.key, 0)
        scores = np.where(columns[None, :] > rows[:, None], -np.inf, scores)
    high = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(high), high, 0.0))
    total = e.sum(axis=-1, keepdims=True)
    return names, [q, k, v], e / np.where(total > 0, total, 1.0)


def _scale(call: Call, q: Array) -> float:
    found: float = call.attributes.get("scale", 1 / math.sqrt(q.shape[-1]))
    return found


def _attention(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    _, (_, _, v), weights = _weights(arrays, call.annotation.inputs, call)
    return (call.grouped(weights @ v, call.annotation.outputs[0]),)


def _attention_grad(which: int) -> Callable[[Sequence[Array], Call], tuple[Array, ...]]:
    def run(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
        how, out = call.annotation.inputs, call.annotation.outputs[0]
        names, (q, k, v), weights = _weights(arrays[1:], how[1:], call)
        gradient = aligned(call, arrays[0], how[0], [*names.lead, names.query, *names.value])
        if which == 2:
            return (summed(call, np.swapaxes(weights, -1, -2) @ gradient, [*names.lead, names.key, *names.value],
                           out),)
        back = gradient @ np.swapaxes(v, -1, -2)
        back = weights * (back - (back * weights).sum(axis=-1, keepdims=True))
        if which == 3:
            return (summed(call, back, names.scores, out),)
        back = back * _scale(call, q)
        if which == 0:
            return (summed(call, back @ k, [*names.lead, names.query, *names.width], out),)
        return (summed(call, np.swapaxes(back, -1, -2) @ q, [*names.lead, names.key, *names.width], out),)

    return run


def _gradient(i: int, count: int, attributes: Mapping[str, Any]) -> Gradient | None:
    if i == 3 and attributes["mask"] == "truths":
        return None
    return Gradient(f"attention_grad{i}", tuple(f"i{n}" for n in range(count)), attributes)


KERNELS["attention"] = Kernel(_attention, _gradient)
KERNELS.update({f"attention_grad{i}": Kernel(_attention_grad(i)) for i in range(4)})
