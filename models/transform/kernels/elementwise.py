"""Functions of one element of each of several tensors: choices, comparisons, bounds, powers.

Operands are aligned by the names of the output, so that any of them may lack a name. A number in place of a tensor
stands in ``constants``, by place; ``None`` there is the next tensor. What is true is 1, what is false 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from weft.models.transform.annotation import Dimensions
from weft.models.transform.kernels.pointwise import erf
from weft.models.transform.kernels.registry import KERNELS, Array, Call, Gradient, Kernel

__all__ = ["FUNCTIONS", "aligned", "summed"]

_Of: TypeAlias = Callable[..., Array]


class Function(NamedTuple):
    """``value`` of all operands, and by place the derivative for it, of all operands too; ``None``: there is none."""

    value: _Of
    slopes: tuple[_Of | None, ...] = ()


def aligned(call: Call, array: Array, tensor: Dimensions, names: Sequence[str]) -> Array:
    """``array`` with an axis for each of ``names``, of one element where it has not that name."""
    own = [name for axis in tensor for name in axis]
    order = sorted(range(len(own)), key=lambda i: names.index(own[i]))
    flat = call.flat(array, tensor).transpose(order)
    return flat.reshape([call.sizes[name] if name in own else 1 for name in names])


def summed(call: Call, array: Array, names: Sequence[str], tensor: Dimensions) -> Array:
    """``array`` with an axis for each of ``names``, added up over those that ``tensor`` has not."""
    wanted = [name for axis in tensor for name in axis]
    whole = np.broadcast_to(array, [call.sizes[name] for name in names])
    kept = [name for name in names if name in wanted]
    total = whole.sum(axis=tuple(i for i, name in enumerate(names) if name not in wanted))
    return call.grouped(total.transpose([kept.index(name) for name in wanted]), tensor)


def _softplus(x: Array, beta: float, threshold: float) -> Array:
    return np.where(x * beta > threshold, x, np.log1p(np.exp(np.minimum(x * beta, threshold))) / beta)


def _logistic(x: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(x / 2)))


def _half(over: Array, same: Array) -> Array:
    return np.asarray(over + 0.5 * same)


#: By kind. In comparisons and choices only the chosen have a derivative.
FUNCTIONS: Mapping[str, Function] = {
    "where": Function(lambda m, a, b: np.asarray(np.where(m != 0, a, b)),
                      (None, lambda m, a, b: m != 0, lambda m, a, b: m == 0)),
    "times": Function(lambda a, b: a * b, (lambda a, b: b, lambda a, b: a)),
    "maximum": Function(np.maximum, (lambda a, b: _half(a > b, a == b), lambda a, b: _half(a < b, a == b))),
    "minimum": Function(np.minimum, (lambda a, b: _half(a < b, a == b), lambda a, b: _half(a > b, a == b))),
    "power": Function(lambda x, p: np.power(np.asarray(x, float), p), (lambda x, p: p * np.power(x, p - 1.0), None)),
    "clamp": Function(lambda x, low, high: np.clip(x, low, high),
                      (lambda x, low, high: (x >= low) & (x <= high), None, None)),
    "softplus": Function(_softplus, (lambda x, beta, top: np.where(x * beta > top, 1.0, _logistic(x * beta)),)),
    "leaky_relu": Function(lambda x, s: np.where(x > 0, x, s * x), (lambda x, s: np.where(x > 0, 1.0, s), None)),
    "elu": Function(lambda x, a: np.where(x > 0, x, a * np.expm1(np.minimum(x, 0))),
                    (lambda x, a: np.where(x > 0, 1.0, a * np.exp(np.minimum(x, 0))), None)),
    "smooth": Function(lambda x, b: np.where(np.abs(x) < b, x * x / (2 * b), np.abs(x) - b / 2),
                       (lambda x, b: np.clip(x / b, -1, 1), None)),
    "floor_divide": Function(lambda a, b: np.asarray(np.floor(a / b))), "remainder": Function(np.mod),
    "lt": Function(np.less), "le": Function(np.less_equal), "gt": Function(np.greater),
    "ge": Function(np.greater_equal), "eq": Function(np.equal), "ne": Function(np.not_equal),
    "and": Function(lambda a, b: (a != 0) & (b != 0)), "or": Function(lambda a, b: (a != 0) | (b != 0)),
    "xor": Function(lambda a, b: (a != 0) ^ (b != 0)), "not": Function(lambda a: a == 0),
    "rsqrt": Function(lambda x: 1 / np.sqrt(x), (lambda x: -0.5 / (x * np.sqrt(x)),)),
    "sin": Function(np.sin, (np.cos,)), "cos": Function(np.cos, (lambda x: -np.sin(x),)),
    "abs": Function(np.abs, (np.sign,)), "erf": Function(erf, (lambda x: 2 / np.sqrt(np.pi) * np.exp(-x * x),)),
    "log1p": Function(np.log1p, (lambda x: 1 / (1 + x),)), "expm1": Function(np.expm1, (np.exp,)),
    "hardtanh": Function(np.clip, (lambda x, low, high: (x > low) & (x < high), None, None)),
    "hardsigmoid": Function(lambda x: np.clip(x / 6 + 0.5, 0, 1), (lambda x: (np.abs(x) < 3) / 6.0,)),
    "hardswish": Function(lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
                          (lambda x: np.where(x <= -3, 0.0, np.where(x >= 3, 1.0, x / 3 + 0.5)),)),
    "log_sigmoid": Function(lambda x: -_softplus(-x, 1.0, 700.0), (lambda x: _logistic(-x),)),
    "floor": Function(np.floor), "sign": Function(np.sign), "isnan": Function(np.isnan),
}


def _operands(arrays: Sequence[Array], call: Call, first: int, names: Sequence[str]) -> list[Any]:
    """All operands, numbers among them; ``first``: which of the inputs is the first tensor of them."""
    given = iter([aligned(call, array, tensor, names) for array, tensor in zip(
        arrays[first:], call.annotation.inputs[first:], strict=True)])
    places = call.attributes.get("constants") or (None,) * (len(arrays) - first)
    return [next(given) if constant is None else constant for constant in places]


def _value(function: Function) -> Callable[[Sequence[Array], Call], tuple[Array, ...]]:
    def run(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
        names = [name for axis in call.annotation.outputs[0] for name in axis]
        made = function.value(*_operands(arrays, call, 0, names))
        return (call.grouped(np.broadcast_to(made, [call.sizes[name] for name in names]), call.annotation.outputs[0]),)

    return run


def _back(slope: _Of) -> Callable[[Sequence[Array], Call], tuple[Array, ...]]:
    def run(arrays: Sequence[Array], call: Call) -> tuple[Array, ...]:
        names = [name for axis in call.annotation.inputs[0] for name in axis]
        gradient = aligned(call, arrays[0], call.annotation.inputs[0], names)
        made = gradient * slope(*_operands(arrays, call, 1, names))
        return (summed(call, made, names, call.annotation.outputs[0]),)

    return run


def _gradient(kind: str, function: Function) -> Callable[[int, int, Mapping[str, Any]], Gradient | None]:
    def of(i: int, count: int, attributes: Mapping[str, Any]) -> Gradient | None:
        places = attributes.get("constants") or (None,) * count
        place = [at for at, constant in enumerate(places) if constant is None][i]
        if place >= len(function.slopes) or function.slopes[place] is None:
            return None
        return Gradient(f"{kind}_grad{place}", tuple(f"i{n}" for n in range(count)), attributes)

    return of


for _kind, _function in FUNCTIONS.items():
    KERNELS[_kind] = Kernel(_value(_function), _gradient(_kind, _function))
    for _place, _slope in enumerate(_function.slopes):
        if _slope is not None:
            KERNELS[f"{_kind}_grad{_place}"] = Kernel(_back(_slope))
