"""Operators of one element of each of several tensors, called as they are captured, as parts broadcast as the whole;
sums and products, and what changes no number. Tensors of no input: one number everywhere, or numbers in a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.models.capture.exported import Ref, Step
from weft.models.transform.backward import TRUTHS
from weft.models.transform.captured.products import broadcast, broadcast_all, expanded, upright
from weft.models.transform.captured.writer import UnknownError, Writer, rule
from weft.models.transform.program import Axis


@rule("add", "sub", "rsub")
def _sum_of_two(w: Writer, step: Step) -> None:
    if step.outputs[0] is not None and w.given(step).dtype == "bool":
        raise UnknownError  # true and true are true, not two
    one, other = (_number(w, step, i) for i in ((1, 0) if step.kind == "rsub" else (0, 1)))
    scale = (1.0 if step.kind.startswith("add") else -1.0) * float(step.keywords.get("alpha", 1))
    if isinstance(one, str) and isinstance(other, str):
        a, b = one, other
        left, right, out = broadcast(w, w.shape(a), w.shape(b))
        w.add(step, "add", [(a, left), (b, right)], out, signs=(1.0, scale))
    else:
        first = isinstance(one, str)
        scaled(w, step, one if first else other, 1.0 if first else scale,
               float(other if first else one) * (scale if first else 1.0))


def _number(w: Writer, step: Step, place: int) -> Any:
    """An operand: a tensor by name, a number."""
    operand = step.arguments[place]
    return _typed(w, step, operand, f".{place}") if isinstance(operand, Ref) else operand


def _typed(w: Writer, step: Step, operand: Ref, name: str) -> str:
    """An operand of the output's type: truths, whole numbers beside others, and numbers of fewer digits are cast."""
    of, to, found = w.exported.metas[operand.name].dtype, w.given(step).dtype, w.tensor(operand)
    if of == to or not (of == "bool" or "float" in to):
        return found
    axes = w.axes(w.shape(found))
    w.used = set()
    return w.add(step, "cast", [(found, axes)], axes, name=name, dtype=to, source=of)


def scaled(w: Writer, step: Step, x: Any, scale: float, constant: float) -> None:
    name = x if isinstance(x, str) else _typed(w, step, x, ".number")
    axes = w.axes(w.shape(name))
    w.add(step, "add", [(name, axes)], axes, signs=(scale,), constant=constant)


@rule("mul")
def _product(w: Writer, step: Step) -> None:
    one, other = step.arguments[:2]
    if step.outputs[0] is not None and "float" not in w.given(step).dtype:
        pointwise(w, step)
    elif isinstance(one, Ref) and isinstance(other, Ref):
        product_of(w, step, w.tensor(one), w.tensor(other))
    else:
        scaled(w, step, one if isinstance(one, Ref) else other, float(other if isinstance(one, Ref) else one), 0.0)


def product_of(w: Writer, step: Step, a: str, b: str) -> None:
    left, right, out = broadcast(w, w.shape(a), w.shape(b))
    w.add(step, "einsum", [(a, left), (b, right)], out)


@rule("div")
def _quotient(w: Writer, step: Step) -> None:
    one, other = step.arguments[:2]
    if step.keywords.get("rounding_mode") is not None or not isinstance(one, Ref):
        pointwise(w, step)
        return
    if not isinstance(other, Ref):
        scaled(w, step, one, 1 / float(other), 0.0)
        return
    b = w.tensor(other)
    axes = w.axes(w.shape(b))
    inverse = w.add(step, "reciprocal", [(b, axes)], axes, name=".inverse")
    product_of(w, step, w.tensor(one), inverse)


@rule("neg")
def _negative(w: Writer, step: Step) -> None:
    scaled(w, step, step.arguments[0], -1.0, 0.0)


@rule("dropout", "feature_dropout")
def _dropout(w: Writer, step: Step) -> None:
    """In training, drawn by the place of each element (:mod:`weft.runtime.by_hand.kernels`)."""
    probability, training = step.arguments[1], step.arguments[2]
    if not (probability and training):
        same_tensor(w, step)
        return
    if probability == 1 or "feature" in step.target:
        raise UnknownError
    x, axes = w.first(step)
    w.add(step, "dropout", [(x, axes), (w.seed(), [])], axes, probability=float(probability),
          lengths=tuple(w.shape(x)), own=len(w.builder.operations))


@rule("contiguous", "clone", "alias", "to", "_to_copy", "type_as", "detach", "lift_fresh", "lift_fresh_copy",
      "positive")
def same_tensor(w: Writer, step: Step) -> None:
    """What changes no number: the same tensor by another name; of another type, a cast."""
    to, of = w.given(step).dtype, w.exported.metas[step.arguments[0].name].dtype
    x, axes = w.first(step)
    if to == of and "detach" not in step.target:
        w.gives(step, x)
        return
    if "complex" in to + of:
        raise UnknownError
    w.add(step, "cast", [(x, axes)], axes, dtype=to, source=of)
    if "detach" in step.target:
        w.stopped(step.given)


def elementwise(w: Writer, step: Step, kind: str, operands: Sequence[Any], name: str | None = None) -> str:
    """One that the step does not call itself, of tensors (of the export, or of the program) and numbers."""
    tensors = [w.tensor(one) if isinstance(one, Ref) else one for one in operands if isinstance(one, Ref | str)]
    numbers = [one for one in operands if not isinstance(one, Ref | str)]
    if not tensors or not all(isinstance(one, int | float) for one in numbers):
        raise UnknownError
    sides, output = broadcast_all(w, [w.shape(tensor) for tensor in tensors])
    constants = tuple(None if isinstance(one, Ref | str) else one for one in operands)
    extra: dict[str, Any] = {"constants": constants} if numbers else {}
    return w.add(step, kind, list(zip(tensors, sides, strict=True)), output, name=name,
                 dtype="bool" if kind in TRUTHS else w.given(step).dtype, **extra)


#: By torch's names.
_POINTWISE = ("abs", "acos", "acosh", "addcdiv", "addcmul", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and",
    "bitwise_not", "bitwise_or", "bitwise_xor", "ceil", "celu", "clamp", "clamp_max", "clamp_min", "copysign", "cos",
    "cosh", "digamma", "elu", "eq", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "floor_divide", "fmax",
    "fmin", "fmod", "frac", "ge", "gelu", "gt", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "hypot",
    "isfinite", "isinf", "isnan", "le", "leaky_relu", "lerp", "lgamma", "log", "log10", "log1p", "log2", "log_sigmoid",
    "logaddexp", "logaddexp2", "logical_and", "logical_not", "logical_or", "logical_xor", "logit", "lt", "masked_fill",
    "maximum", "minimum", "mish", "nan_to_num", "ne", "pow", "reciprocal", "relu", "relu6", "remainder", "round",
    "rsqrt", "selu", "sgn", "sigmoid", "sign", "silu", "sin", "sinc", "sinh", "softplus", "softshrink", "softsign",
    "sqrt", "square", "tan", "tanh", "threshold", "trunc", "xlogy", "__and__", "__or__", "__xor__", "where")


def pointwise(w: Writer, step: Step, name: str | None = None) -> str:
    """The captured operator itself; ``name``: of what it makes, where the step does not give that."""
    reads = list(dict.fromkeys(w.names[name] for name in step.reads))
    sides, output = broadcast_all(w, [w.shape(tensor) for tensor in reads])
    return w.call(step, list(zip(reads, sides, strict=True)), output, frozen=(), name=name)


@rule(*_POINTWISE)
def _pointwise(w: Writer, step: Step) -> None:
    pointwise(w, step)


@rule("min", "max")
def _extreme(w: Writer, step: Step) -> None:
    """Of two tensors; over a dimension it is another operator."""
    if len(step.arguments) != 2 or not isinstance(step.arguments[1], Ref):
        raise UnknownError
    pointwise(w, step)


#: Where the number stands among the arguments of what fills a tensor with it.
_FILLED = {"full": 1, "new_full": 2, "full_like": 1, "scalar_tensor": 0, "fill": 1}


@rule(*_FILLED, "zeros", "new_zeros", "zeros_like", "ones", "new_ones", "ones_like")
def _full(w: Writer, step: Step) -> None:
    meta = w.given(step)
    number = step.at(_FILLED[step.kind], "fill_value") if step.kind in _FILLED else int("ones" in step.kind)
    if isinstance(number, Ref):
        _copy(w, step)
        return
    if not isinstance(number, int | float | bool) or "complex" in meta.dtype:
        raise UnknownError
    axes = w.axes(meta.shape)
    w.add(step, "full", [], axes, sizes={axis[0]: size for axis, size in zip(axes, meta.shape, strict=True)
                                         if axis}, value=number, dtype=meta.dtype)


@rule("copy")
def _copy(w: Writer, step: Step) -> None:
    """The second tensor in the first one's shape and type."""
    to, of = (w.exported.metas[step.arguments[i].name] for i in (0, 1))
    source = w.tensor(step.arguments[1])
    if to.dtype != of.dtype:
        own = w.axes(of.shape)
        source = w.add(step, "cast", [(source, own)], own, name=".cast", dtype=to.dtype, source=of.dtype)
    expanded(w, step, source, to.shape)


@rule("arange")
def _arange(w: Writer, step: Step) -> None:
    numbers = [one for one in step.arguments if isinstance(one, int | float)]
    start, end, stride = {1: (0, *numbers, 1), 2: (*numbers, 1), 3: tuple(numbers)}.get(len(numbers), (0, 0, 0))
    meta = w.given(step)
    if not stride or meta.shape != (max(0, math.ceil((end - start) / stride)),):
        raise UnknownError
    _row(w, step, meta.shape[0], start, stride, meta.dtype)


def _row(w: Writer, step: Step, count: int, start: float, stride: float, dtype: str,
         name: str | None = None) -> str:
    axis: Axis = (w.fresh("n"),)
    return w.add(step, "range", [], [axis], sizes={axis[0]: count}, start=start, stride=stride, dtype=dtype, name=name)


@rule("tril", "triu")
def _triangle(w: Writer, step: Step) -> None:
    x, diagonal = w.tensor(step.arguments[0]), step.at(1, "diagonal", 0)
    rows, columns = w.shape(x)[-2:]
    row = _row(w, step, rows, diagonal, 1, "int64", ".rows")
    column = _row(w, step, columns, 0, 1, "int64", ".columns")
    seen = elementwise(w, step, "ge" if step.kind.startswith("tril") else "le", [upright(w, step, row, 1), column],
                       name=".seen")
    elementwise(w, step, "where", [seen, x, 0])
