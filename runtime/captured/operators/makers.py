"""The operators of a captured graph that become layers, each with its formula: a table with one line per operator.

A maker gets the operator's arguments by name, and ``weigh``, which returns a fake tensor for an argument that is a
weight (a parameter, or a function of parameters alone). It returns formula, weights and inputs, or ``None`` for
arguments that the formula does not support.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.fx import Node

from weft.runtime.train import formulas
from weft.runtime.train.deferred import Formula

#: A fake tensor of an argument if it is a weight.
Weigh = Callable[[Any], Tensor | None]


class DeferredCall(NamedTuple):
    """A formula and its operands: weights, in the formula's order, and inputs."""

    formula: Formula
    weights: Sequence[Node]
    xs: Sequence[Node]


Maker = Callable[[Mapping[str, Any], Weigh], DeferredCall | None]


def arguments(node: Node) -> dict[str, Any]:
    """All arguments of a call, by their names in the schema; the key ``""`` has the target."""
    schema = node.target._schema  # type: ignore[union-attr]
    given = {argument.name: node.args[i] if i < len(node.args) else node.kwargs.get(
        argument.name, argument.default_value if argument.has_default_value() else None)
        for i, argument in enumerate(schema.arguments)}
    return {**given, "": node.target}


def _with_bias(formula: Formula, x: Any, weight: Any, bias: Any, weigh: Weigh) -> DeferredCall | None:
    """A layer with an optional bias, which must be a weight."""
    if not _is_input(x, weigh) or (bias is not None and weigh(bias) is None):
        return None
    return DeferredCall(formula, [weight] if bias is None else [weight, bias], [x])


def _is_input(x: Any, weigh: Weigh) -> bool:
    return isinstance(x, Node) and weigh(x) is None


def _dims(value: Any) -> int:
    fake = value.meta.get("val") if isinstance(value, Node) else None
    return fake.dim() if isinstance(fake, Tensor) else 0


# -- products ----------------------------------------------------------------------------------------------------------


def _linear(given: Mapping[str, Any], weigh: Weigh) -> DeferredCall | None:
    weight = weigh(given["weight"])
    if weight is None or weight.dim() != 2:
        return None
    return _with_bias(formulas.Linear(), given["input"], given["weight"], given["bias"], weigh)


def _product(given: Mapping[str, Any], weigh: Weigh) -> DeferredCall | None:
    first, second = given["self"], given.get("mat2", given.get("other"))
    left, right = weigh(first), weigh(second)
    if right is not None and right.dim() >= 2 and _is_input(first, weigh) and (
            right.dim() == 2 or _dims(first) >= 2):
        return DeferredCall(formulas.Product(), [second], [first])
    if left is not None and left.dim() == 2 and _is_input(second, weigh) and _dims(second) >= 2:
        return DeferredCall(formulas.ProductOfWeight(), [first], [second])
    return None


def _sum_of_products(given: Mapping[str, Any], weigh: Weigh) -> DeferredCall | None:
    x, second = given.get("mat1", given.get("batch1")), given.get("mat2", given.get("batch2"))
    if weigh(second) is None or given["beta"] != 1 or given["alpha"] != 1:
        return None
    return _with_bias(formulas.Product(), x, second, given["self"], weigh)


def _einsum(given: Mapping[str, Any], weigh: Weigh) -> DeferredCall | None:
    if len(given["tensors"]) != 2 or given.get("path"):
        return None
    for i, weight in enumerate(given["tensors"]):
        x = given["tensors"][1 - i]
        fake = weigh(weight)
        if fake is not None and _is_input(x, weigh) and formulas.Einsum.fits(given["equation"], i == 0):
            return DeferredCall(formulas.Einsum(given["equation"], i == 0), [weight], [x])
    return None


def _grouped(given: Mapping[str, Any], weigh: Weigh) -> DeferredCall | None:
    names = ("self", "mat2") if "self" in given else ("input", "weight")
    x, weight = (given[name] for name in names)
    fake, ends = weigh(weight), given.get("offs")
    if fake is None or fake.dim() != 3 or _dims(x) != 2 or not _is_input(x, weigh) or not isinstance(ends, Node):
        return None
    return DeferredCall(formulas.GroupedProduct(given[""]), [weight], [x, ends])


# -- convolutions and tables -------------------------------------------------------------------------------------------


def _convolution(given: Mapping[str, Any], weigh: Weigh) -> DeferredCall | None:
    weight, x = weigh(given["weight"]), given["input"]
    if weight is None or _dims(x) != weight.dim():  # an input without a batch dimension
        return None
    dims = weight.dim() - 2
    stride, dilation = _each(given["stride"], dims), _each(given["dilation"], dims)
    padding, groups, pad = given["padding"], given["groups"], list[int]()
    if isinstance(padding, str):
        whole = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilation, weight.shape[2:], strict=True)]
        padding, pad = formulas.same_padding(whole)
    transposed = bool(given.get("transposed", "output_padding" in given))
    output = _each(given.get("output_padding", [0]), dims)
    formula = formulas.Convolution(stride, _each(padding, dims), dilation, transposed, output, groups, pad)
    return _with_bias(formula, x, given["weight"], given["bias"], weigh)


def _table(given: Mapping[str, Any], weigh: Weigh) -> DeferredCall | None:
    if weigh(given["weight"]) is None or given["scale_grad_by_freq"] or given["sparse"]:
        return None
    return _with_bias(formulas.Table(given["padding_idx"]), given["indices"], given["weight"], None, weigh)


# -- light ones --------------------------------------------------------------------------------------------------------


def _batch_norm(given: Mapping[str, Any], weigh: Weigh) -> DeferredCall | None:
    if weigh(given["weight"]) is None or not given["training"]:
        return None
    call = _with_bias(formulas.BatchNorm(given["momentum"], given["eps"]), given["input"], given["weight"],
                      given["bias"], weigh)
    statistics = [given[name] for name in ("running_mean", "running_var") if given[name] is not None]
    return None if call is None else call._replace(xs=[*call.xs, *statistics])


def _shift(given: Mapping[str, Any], weigh: Weigh) -> DeferredCall | None:
    for weight, x in ((given["self"], given["other"]), (given["other"], given["self"])):
        if given["alpha"] == 1 and isinstance(weight, Node) and weigh(weight) is not None and _is_input(x, weigh):
            return DeferredCall(formulas.Shift(), [weight], [x])
    return None


#: Makers by operator. Other operators that read weights may be run again in W.
MAKERS: dict[str, Maker] = {
    "linear": _linear, "mm": _product, "matmul": _product, "bmm": _product, "addmm": _sum_of_products,
    "baddbmm": _sum_of_products, "einsum": _einsum, "_grouped_mm": _grouped, "grouped_mm_fallback": _grouped,
    "conv1d": _convolution, "conv2d": _convolution, "conv3d": _convolution, "convolution": _convolution,
    "conv_transpose1d": _convolution, "conv_transpose2d": _convolution, "conv_transpose3d": _convolution,
    "embedding": _table, "batch_norm": _batch_norm, "add": _shift}
#: Operators that are too slow to run again: their weight gradients are computed in I.
NOT_AGAIN = {"lstm", "gru", "rnn_tanh", "rnn_relu", "scaled_dot_product_attention", "multi_head_attention_forward",
             "_native_multi_head_attention", "_transformer_encoder_layer_fwd"}


def _each(values: Sequence[int], dims: int) -> list[int]:
    return list(values) * dims if len(values) == 1 else list(values)
