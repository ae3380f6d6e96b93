"""Views that cut and join."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.models.transform.annotation import Annotation
from weft.models.transform.kernels.registry import KERNELS, Array, Call, Gradient, Kernel, of_input


def _reshape(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    return (call.grouped(arrays[0], call.annotation.outputs[0]),)


def _take(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    """Elements ``start`` to ``stop`` along ``axis``, every ``step``-th."""
    start, stop, step = call.attributes["span"]
    return (np.take(arrays[0], range(start, stop, step), axis=call.attributes["axis"]),)


def _take_grad(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    start, stop, step = call.attributes["span"]
    made = np.zeros(Annotation.shape(call.annotation.outputs[0], call.sizes))
    at: list[slice] = [slice(None)] * made.ndim
    at[call.attributes["axis"]] = slice(start, stop, step)
    made[tuple(at)] = arrays[0]
    return (made,)


def _join(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    return (np.concatenate(list(arrays), call.attributes["axis"]),)


def _join_gradient(i: int, count: int, attributes: Mapping[str, Any]) -> Gradient:
    low = sum(attributes["lengths"][:i])
    return Gradient("take", (), {"axis": attributes["axis"], "span": (low, low + attributes["lengths"][i], 1)})


KERNELS.update({
    "reshape": Kernel(_reshape, lambda i, count, attributes: Gradient("reshape")),
    "take": Kernel(_take, of_input("take_grad", ())),
    "take_grad": Kernel(_take_grad),
    "join": Kernel(_join, _join_gradient),
})
