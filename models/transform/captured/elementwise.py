"""Choices, comparisons, bounds and powers: each element of the output is of one element of each tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.models.capture.exported import Named, Ref, Step
from weft.models.transform.captured.products import broadcast_all
from weft.models.transform.captured.writer import Arguments, Rule, UnknownError, Writer, rule
from weft.models.transform.gradients import TRUTHS

__all__ = ["elementwise"]


def elementwise(w: Writer, step: Step, kind: str, operands: Sequence[Any], *, name: str | None = None,
                last: bool = True) -> str:
    """One operator of tensors (of the export, or of the program) and numbers."""
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


def _of(kind: str, count: int, *defaults: float) -> Rule:
    """An operator of its first ``count`` arguments; ``defaults`` of those that come last."""
    def known(w: Writer, step: Step) -> None:
        names = [*step.arguments[:count]]
        names += defaults[len(defaults) - (count - len(names)):] if len(names) < count else ()
        if len(names) != count or any(step.keywords.get(key) for key in ("rounding_mode", "alpha")):
            raise UnknownError
        elementwise(w, step, kind, names)

    return known


for _kind in ("lt", "le", "gt", "ge", "eq", "ne", "maximum", "minimum", "logical_and", "logical_or", "logical_xor",
              "floor_divide", "remainder"):
    rule(_kind)(_of(_kind, 2))
for _kind in ("rsqrt", "sin", "cos", "abs", "erf", "log1p", "expm1", "logical_not", "hardsigmoid", "hardswish",
              "log_sigmoid", "floor", "sign", "isnan"):
    rule(_kind)(_of(_kind, 1))
rule("softplus")(_of("softplus", 3, 1.0, 20.0))
rule("leaky_relu")(_of("leaky_relu", 2, 0.01))
rule("hardtanh")(_of("hardtanh", 3, -1.0, 1.0))


def _bits(kind: str) -> Rule:
    """Of truths alone: of whole numbers it would go bit by bit."""
    def known(w: Writer, step: Step) -> None:
        if any(w.exported.metas[one.name].dtype != "bool" for one in step.arguments if isinstance(one, Ref)):
            raise UnknownError
        elementwise(w, step, kind, step.arguments)

    return known


for _kind in ("and", "or", "xor", "not"):
    rule(f"__{_kind}__", f"bitwise_{_kind}")(_bits(f"logical_{_kind}"))


@rule("where")
def _where(w: Writer, step: Step) -> None:
    if len(step.arguments) != 3:
        raise UnknownError
    elementwise(w, step, "where", step.arguments)


@rule("masked_fill")
def _masked_fill(w: Writer, step: Step) -> None:
    x, mask, value = step.arguments
    elementwise(w, step, "where", [mask, value, x])


@rule("clamp", "clamp_min", "clamp_max")
def _clamp(w: Writer, step: Step) -> None:
    call = Arguments(step)
    kind = step.target.removeprefix("torch.ops.aten.").split(".")[0].rstrip("_")
    low = None if kind == "clamp_max" else call.at(1, "min")
    high = call.at(1, "max") if kind == "clamp_max" else call.at(2, "max")
    if any(isinstance(bound, Ref | Named) for bound in (low, high)):
        raise UnknownError
    elementwise(w, step, "clamp", [step.arguments[0], -math.inf if low is None else low,
                                   math.inf if high is None else high])


@rule("min", "max")
def _extreme(w: Writer, step: Step) -> None:
    """Of two tensors; over a dimension it is another operator."""
    if len(step.arguments) != 2 or not isinstance(step.arguments[1], Ref):
        raise UnknownError
    kind = step.target.removeprefix("torch.ops.aten.").split(".")[0]
    elementwise(w, step, f"{kind}imum", step.arguments)


@rule("pow")
def _power(w: Writer, step: Step) -> None:
    if step.arguments[1] == 2 and isinstance(step.arguments[0], Ref):
        _square(w, step)
    elif isinstance(step.arguments[0], Ref) and not isinstance(step.arguments[1], Ref):
        elementwise(w, step, "pow", step.arguments)
    else:
        raise UnknownError


def _square(w: Writer, step: Step) -> None:
    """A square, which has a kernel of its own."""
    x = w.tensor(step.arguments[0])
    axes = w.axes(w.shape(x))
    w.add(step, "square", [(x, axes)], axes)


@rule("elu")
def _elu(w: Writer, step: Step) -> None:
    if any(value != 1 for value in step.arguments[2:]):
        raise UnknownError
    elementwise(w, step, "elu", [step.arguments[0], Arguments(step).at(1, "alpha", 1.0)])
