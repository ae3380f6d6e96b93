"""Operators of one element of each of several tensors, called as they are captured: parts broadcast as the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.models.capture.exported import Ref, Step
from weft.models.transform.captured.products import broadcast_all
from weft.models.transform.captured.writer import UnknownError, Writer, refs, rule
from weft.models.transform.gradients import TRUTHS

__all__ = ["elementwise", "pointwise"]


def elementwise(w: Writer, step: Step, kind: str, operands: Sequence[Any], *, name: str | None = None,
                last: bool = True) -> str:
    """One that the step does not call itself, of tensors (of the export, or of the program) and numbers."""
    tensors = [w.tensor(one) if isinstance(one, Ref) else one for one in operands if isinstance(one, Ref | str)]
    numbers = [one for one in operands if not isinstance(one, Ref | str)]
    if not tensors or not all(isinstance(one, int | float) for one in numbers):
        raise UnknownError
    sides, output = broadcast_all(w, [w.shape(tensor) for tensor in tensors])
    given = step.outputs[0]
    assert given is not None
    constants = tuple(None if isinstance(one, Ref | str) else one for one in operands)
    extra: dict[str, Any] = {"constants": constants} if numbers else {}
    return w.add(step, kind, list(zip(tensors, sides, strict=True)), output, name=name, last=last,
                 dtype="bool" if kind in TRUTHS else w.exported.metas[given].dtype, **extra)


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


@rule(*_POINTWISE)
def pointwise(w: Writer, step: Step) -> None:
    """The captured operator itself."""
    reads = list(dict.fromkeys(w.names[name] for name in refs((step.arguments, step.keywords))))
    sides, output = broadcast_all(w, [w.shape(tensor) for tensor in reads])
    w.call(step, list(zip(reads, sides, strict=True)), output, frozen=())


@rule("min", "max")
def _extreme(w: Writer, step: Step) -> None:
    """Of two tensors; over a dimension it is another operator."""
    if len(step.arguments) != 2 or not isinstance(step.arguments[1], Ref):
        raise UnknownError
    pointwise(w, step)
