"""Functions of single elements, sums and products of tensors."""

from __future__ import annotations

from typing import Any

from weft.models.capture.exported import Ref, Step
from weft.models.transform.captured.products import broadcast
from weft.models.transform.captured.writer import Arguments, Rule, UnknownError, Writer, rule

__all__ = ["product_of", "same_tensor", "scaled", "unary"]


def unary(kind: str) -> Rule:
    def rule(w: Writer, step: Step) -> None:
        x = w.tensor(step.arguments[0])
        axes = w.axes(w.shape(x))
        tanh = kind == "gelu" and Arguments(step).at(1, "approximate", "none") == "tanh"
        w.add(step, "gelu_tanh" if tanh else kind, [(x, axes)], axes)

    return rule


def _sum_of_two(sign: float) -> Rule:
    def rule(w: Writer, step: Step) -> None:
        w.require_numbers(step)
        one, other = step.arguments[:2]
        scale = sign * float(step.keywords.get("alpha", 1))
        if isinstance(one, Ref) and isinstance(other, Ref):
            a, b = w.tensor(one), w.tensor(other)
            left, right, out = broadcast(w, w.shape(a), w.shape(b))
            w.add(step, "add", [(a, left), (b, right)], out, signs=(1.0, scale))
        else:
            scaled(w, step, one if isinstance(one, Ref) else other,
                    1.0 if isinstance(one, Ref) else scale, float(other if isinstance(one, Ref) else one)
                    * (scale if isinstance(one, Ref) else 1.0))

    return rule


def scaled(w: Writer, step: Step, x: Any, scale: float, constant: float) -> None:
    name = w.tensor(x)
    axes = w.axes(w.shape(name))
    w.add(step, "add", [(name, axes)], axes, signs=(scale,), constant=constant)


@rule("mul")
def _product(w: Writer, step: Step) -> None:
    one, other = step.arguments[:2]
    if isinstance(one, Ref) and isinstance(other, Ref):
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
        raise UnknownError
    if not isinstance(other, Ref):
        scaled(w, step, one, 1 / float(other), 0.0)
        return
    b = w.tensor(other)
    axes = w.axes(w.shape(b))
    inverse = w.add(step, "reciprocal", [(b, axes)], axes, name=f"{step.name}.inverse", last=False)
    product_of(w, step, w.tensor(one), inverse)


@rule("neg")
def _negative(w: Writer, step: Step) -> None:
    scaled(w, step, step.arguments[0], -1.0, 0.0)


@rule("pow")
def _power(w: Writer, step: Step) -> None:
    if step.arguments[1] != 2:
        raise UnknownError
    unary("square")(w, step)


@rule("dropout")
def _dropout(w: Writer, step: Step) -> None:
    if step.arguments[1] and step.arguments[2]:
        raise UnknownError  # random
    same_tensor(w, step)


@rule("contiguous", "clone", "alias", "to")
def same_tensor(w: Writer, step: Step) -> None:
    """What changes no number: the same tensor by another name."""
    given = step.outputs[0]
    assert given is not None
    if w.exported.metas[given].dtype != w.exported.metas[step.arguments[0].name].dtype:
        raise UnknownError
    w.gives(step, w.tensor(step.arguments[0]))

for _kind in ("relu", "gelu", "silu", "sigmoid", "tanh", "exp", "square", "sqrt", "log", "reciprocal"):
    rule(_kind)(unary(_kind))
rule("add")(_sum_of_two(1.0))
rule("sub")(_sum_of_two(-1.0))
