"""Operators of a captured graph as layers again, so that a split backward can defer their weight gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.fx import Node

from weft.runtime.captured.purity import operator_name
from weft.runtime.train.deferred import Convolution, DeferredOperator, Product, Table

__all__ = ["Layer", "layer_of"]


class Layer(NamedTuple):
    """A module that does what an operator does with its input ``x``."""

    module: nn.Module
    x: Node


def layer_of(node: Node, attribute: Callable[[Node], Any]) -> Layer | None:
    """The layer that ``node`` is, if it is one on weights of the model's own; ``attribute`` gives what a ``get_attr``
    node reads. Kinds: ``linear``; products with a matrix or matrices of weights (``addmm``, ``mm``, ``matmul``,
    ``bmm``); convolutions; rows of a table."""
    if node.op != "call_function" or getattr(node.target, "_schema", None) is None:
        return None
    values = [attribute(arg) if isinstance(arg, Node) and arg.op == "get_attr" else arg for arg in node.args]
    name = operator_name(node)
    overload = node.target._overloadname  # type: ignore[union-attr]
    if node.kwargs or (name != "bmm" and overload != "default") or name not in _MAKERS:
        return None
    found = _MAKERS[name](values)
    if found is None or not isinstance(found[1], Node):
        return None
    looks = node.meta.get("val")
    if isinstance(found[0], DeferredOperator) and isinstance(looks, Tensor) and looks.dtype != found[0].weight.dtype:
        return None  # under autocast: their gradients are made of what torch has made of the weights
    return Layer(*found)


def _linear(values: list[Any]) -> tuple[nn.Module, Any] | None:
    x, weight, *rest = values
    bias = rest[0] if rest else None
    if not _is_weight(weight, 2) or not (bias is None or isinstance(bias, nn.Parameter)):
        return None
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    linear.weight = weight
    if bias is not None:
        linear.bias = bias
    return linear, x


def _addmm(values: list[Any]) -> tuple[nn.Module, Any] | None:
    bias, x, weight = values
    return (Product(weight, bias), x) if isinstance(bias, nn.Parameter) and _is_weight(weight, 2) else None


def _product(values: list[Any]) -> tuple[nn.Module, Any] | None:
    x, weight = values
    return (Product(weight), x) if _is_weight(weight, 2) else None


def _products(values: list[Any]) -> tuple[nn.Module, Any] | None:
    x, weight = values
    return (Product(weight), x) if _is_weight(weight, 3) else None


def _convolution(values: list[Any]) -> tuple[nn.Module, Any] | None:
    x, weight, bias, stride, padding, dilation, groups = [*values, *_PLAIN[len(values) - 2:]]
    if not isinstance(weight, nn.Parameter) or not (bias is None or isinstance(bias, nn.Parameter)):
        return None
    return Convolution(weight, bias, stride, padding, dilation, groups), x


def _table(values: list[Any]) -> tuple[nn.Module, Any] | None:
    weight, x, *rest = values
    if not _is_weight(weight, 2) or any(rest[1:]):  # gradients scaled by frequency, or sparse
        return None
    return Table(weight, rest[0] if rest else -1), x


#: What a convolution has where nothing is said: bias, stride, padding, dilation, groups.
_PLAIN: list[Any] = [None, [1], [0], [1], 1]
_MAKERS: dict[str, Callable[[list[Any]], tuple[nn.Module, Any] | None]] = {
    "linear": _linear, "addmm": _addmm, "mm": _product, "matmul": _product, "bmm": _products,
    "conv1d": _convolution, "conv2d": _convolution, "conv3d": _convolution, "embedding": _table}


def _is_weight(value: object, dims: int) -> bool:
    return isinstance(value, nn.Parameter) and value.dim() == dims
