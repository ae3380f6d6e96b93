"""Functions of one element."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from weft.models.transform.kernels.registry import KERNELS, Array, Gradient, Kernel

__all__ = ["erf"]

#: The error function.
erf = np.vectorize(math.erf, otypes=[float])


def _sigmoid(x: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def _gelu_tanh(x: Array) -> tuple[Array, Array]:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    tanh = np.tanh(inner)
    slope = 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    return 0.5 * x * (1 + tanh), slope


def _density(x: Array) -> Array:
    return np.asarray(np.exp(-x * x / 2) / math.sqrt(2 * math.pi))


def _cumulative(x: Array) -> Array:
    return np.asarray(0.5 * (1 + erf(x / math.sqrt(2)))) if x.size else x


#: Functions of one element and their derivatives.
_UNARY: Mapping[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "identity": (lambda x: x, np.ones_like),
    "relu": (lambda x: np.maximum(x, 0), lambda x: (x > 0).astype(float)),
    "gelu": (lambda x: x * _cumulative(x), lambda x: _cumulative(x) + x * _density(x)),
    "gelu_tanh": (lambda x: _gelu_tanh(x)[0], lambda x: _gelu_tanh(x)[1]),
    "silu": (lambda x: x * _sigmoid(x), lambda x: _sigmoid(x) * (1 + x * (1 - _sigmoid(x)))),
    "sigmoid": (_sigmoid, lambda x: _sigmoid(x) * (1 - _sigmoid(x))),
    "tanh": (np.tanh, lambda x: 1 - np.tanh(x) ** 2),
    "exp": (np.exp, np.exp),
    "square": (lambda x: x * x, lambda x: 2 * x),
    "sqrt": (np.sqrt, lambda x: 0.5 / np.sqrt(x)),
    "log": (np.log, lambda x: 1 / x),
    "reciprocal": (lambda x: 1 / x, lambda x: -1 / (x * x)),
}


def _register_unary(kind: str, value: Callable[[Array], Array], slope: Callable[[Array], Array]) -> None:
    KERNELS[kind] = Kernel(lambda arrays, call: (value(arrays[0]),),
                           lambda i, count, attributes: Gradient(f"{kind}_grad", ("i0",)))
    KERNELS[f"{kind}_grad"] = Kernel(lambda arrays, call: (arrays[0] * slope(arrays[1]),))


for _kind, _pair in _UNARY.items():
    _register_unary(_kind, *_pair)
