"""Tensors of no input, types, and chance: numbers that follow from the place of an element in the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.models.transform.annotation import Annotation
from weft.models.transform.kernels.registry import KERNELS, Array, Call, Gradient, Kernel

_LOW = 0xFFFFFFFF


def _full(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    return (np.full(Annotation.shape(call.annotation.outputs[0], call.sizes), call.attributes["value"]),)


def _range(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    name = call.annotation.outputs[0][0][0]
    places = np.arange(call.sizes[name]) + call.starts.get(name, 0)
    return (call.attributes["start"] + places * call.attributes["stride"],)


def _cast(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    """Whole numbers and truths as such; of types of fewer digits, all keep the digits of fp64."""
    kind = call.attributes["dtype"]
    if kind == "bool":
        return (arrays[0] != 0,)
    return (np.trunc(arrays[0] * 1.0) if "int" in kind else arrays[0] * 1.0,)


def _hash(places: Array) -> Array:
    """32 bits of each place, evenly spread: MurmurHash3's last step (Appleby, public domain)."""
    places = places & _LOW
    places = ((places ^ (places >> 16)) * 0x85EBCA6B) & _LOW
    places = ((places ^ (places >> 13)) * 0xC2B2AE35) & _LOW
    return np.asarray(places ^ (places >> 16))


def _dropout(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    """Elements stay by chance, drawn from the step's seed, the operator's own and the element's place in the whole: a
    part draws what the whole draws."""
    x, seed = arrays
    drop, lengths = call.attributes["probability"], call.attributes["lengths"]
    place = np.zeros((1,) * x.ndim, np.int64)
    for axis, (names, length) in enumerate(zip(call.annotation.inputs[0], lengths, strict=True)):
        first = call.starts.get(names[0], 0) if names else 0
        along = (np.arange(x.shape[axis]) + first).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
        place = place * length + along
    with np.errstate(over="ignore"):
        start = _hash(np.asarray(int(seed) * 0x9E3779B1 + call.attributes["own"], np.int64))
        drawn = _hash(_hash(place) + start) / 2.0**32
    return (np.where(drawn >= drop, x / (1 - drop), 0.0),)


def _dropout_gradient(i: int, count: int, attributes: Mapping[str, Any]) -> Gradient | None:
    return Gradient("dropout", ("i1",), attributes) if i == 0 else None


KERNELS.update({
    "full": Kernel(_full), "range": Kernel(_range),
    "cast": Kernel(_cast, lambda i, count, attributes: Gradient(
        "cast", (), {"dtype": attributes["source"], "source": attributes["dtype"]})),
    "dropout": Kernel(_dropout, _dropout_gradient),
})
