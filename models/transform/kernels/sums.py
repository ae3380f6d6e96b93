"""Sums of products: matmuls, projections, permutations, expansions, reductions, products, sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.models.transform.kernels.registry import KERNELS, Array, Call, Gradient, Kernel


def _einsum(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    letters = {name: chr(97 + i) for i, name in enumerate(call.annotation.names)}
    out = call.annotation.outputs[0]
    given = {name for tensor in call.annotation.inputs for axis in tensor for name in axis}
    wanted = [name for axis in out for name in axis]
    left = ",".join("".join(letters[name] for axis in tensor for name in axis) for tensor in call.annotation.inputs)
    right = "".join(letters[name] for name in wanted if name in given)
    flat = [call.flat(array, tensor) for array, tensor in zip(arrays, call.annotation.inputs, strict=True)]
    made = np.einsum(f"{left}->{right}", *flat, optimize=len(flat) > 1) * call.attributes.get("scale", 1.0)
    made = made.reshape([call.sizes[name] if name in given else 1 for name in wanted])
    return (call.grouped(np.broadcast_to(made, [call.sizes[name] for name in wanted]), out),)


def _einsum_gradient(i: int, count: int, attributes: Mapping[str, Any]) -> Gradient:
    return Gradient("einsum", tuple(f"i{n}" for n in range(count) if n != i), attributes)


def _add(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
    names = [name for axis in call.annotation.outputs[0] for name in axis]
    total: Any = 0.0
    for i, (array, tensor) in enumerate(zip(arrays, call.annotation.inputs, strict=True)):
        own = [name for axis in tensor for name in axis]
        order = sorted(range(len(own)), key=lambda n: names.index(own[n]))
        flat = call.flat(array, tensor).transpose(order)
        total = total + flat.reshape([call.sizes[name] if name in own else 1 for name in names]) * _sign(call, i)
    total = total + call.attributes.get("constant", 0.0)
    return (call.grouped(np.broadcast_to(total, [call.sizes[name] for name in names]),
                         call.annotation.outputs[0]),)


def _sign(call: Call, i: int) -> float:
    signs: Sequence[float] = call.attributes.get("signs", ())
    return signs[i] if signs else 1.0


def _add_gradient(i: int, count: int, attributes: Mapping[str, Any]) -> Gradient:
    return Gradient("einsum", (), {"scale": attributes["signs"][i]} if attributes.get("signs") else {})


KERNELS.update({"einsum": Kernel(_einsum, _einsum_gradient), "add": Kernel(_add, _add_gradient)})
