"""Sums and products of tensors, and what changes no number."""

from __future__ import annotations

from typing import Any

from weft.models.capture.exported import Ref, Step
from weft.models.transform.captured.elementwise import pointwise
from weft.models.transform.captured.products import broadcast
from weft.models.transform.captured.writer import Rule, UnknownError, Writer, rule

__all__ = ["product_of", "same_tensor", "scaled"]


def _sum_of_two(sign: float, *, turned: bool = False) -> Rule:
    def rule(w: Writer, step: Step) -> None:
        if step.outputs[0] is not None and w.exported.metas[step.outputs[0]].dtype == "bool":
            raise UnknownError  # true and true are true, not two
        one, other = (_number(w, step, i) for i in ((1, 0) if turned else (0, 1)))
        scale = sign * float(step.keywords.get("alpha", 1))
        if isinstance(one, str) and isinstance(other, str):
            a, b = one, other
            left, right, out = broadcast(w, w.shape(a), w.shape(b))
            w.add(step, "add", [(a, left), (b, right)], out, signs=(1.0, scale))
        else:
            first = isinstance(one, str)
            scaled(w, step, one if first else other, 1.0 if first else scale,
                   float(other if first else one) * (scale if first else 1.0))

    return rule


def _number(w: Writer, step: Step, place: int) -> Any:
    """An operand: a tensor by name, a number."""
    operand = step.arguments[place]
    return _typed(w, step, operand, f"{step.name}.{place}") if isinstance(operand, Ref) else operand


def _typed(w: Writer, step: Step, operand: Ref, name: str) -> str:
    """An operand of the output's type: truths, whole numbers beside others, and numbers of fewer digits are cast."""
    given = step.outputs[0]
    assert given is not None
    of, to, found = w.exported.metas[operand.name].dtype, w.exported.metas[given].dtype, w.tensor(operand)
    if of == to or not (of == "bool" or "float" in to):
        return found
    axes = w.axes(w.shape(found))
    w.used = set()
    return w.add(step, "cast", [(found, axes)], axes, name=name, last=False, dtype=to, source=of)


def scaled(w: Writer, step: Step, x: Any, scale: float, constant: float) -> None:
    name = x if isinstance(x, str) else _typed(w, step, x, f"{step.name}.number")
    axes = w.axes(w.shape(name))
    w.add(step, "add", [(name, axes)], axes, signs=(scale,), constant=constant)


@rule("mul")
def _product(w: Writer, step: Step) -> None:
    one, other = step.arguments[:2]
    given = step.outputs[0]
    if given is not None and "float" not in w.exported.metas[given].dtype:
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
    inverse = w.add(step, "reciprocal", [(b, axes)], axes, name=f"{step.name}.inverse", last=False)
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
    x = w.tensor(step.arguments[0])
    axes = w.axes(w.shape(x))
    w.add(step, "dropout", [(x, axes), (w.seed(), [])], axes, probability=float(probability),
          lengths=tuple(w.shape(x)), own=len(w.builder.operations))


@rule("contiguous", "clone", "alias", "to", "_to_copy", "type_as", "detach", "lift_fresh", "lift_fresh_copy",
      "positive")
def same_tensor(w: Writer, step: Step) -> None:
    """What changes no number: the same tensor by another name; of another type, a cast."""
    given = step.outputs[0]
    assert given is not None
    to, of = w.exported.metas[given].dtype, w.exported.metas[step.arguments[0].name].dtype
    x = w.tensor(step.arguments[0])
    if to == of and "detach" not in step.target:
        w.gives(step, x)
        return
    if "complex" in to + of:
        raise UnknownError
    axes = w.axes(w.shape(x))
    w.add(step, "cast", [(x, axes)], axes, dtype=to, source=of)
    if "detach" in step.target:
        w.stopped(given)


rule("add")(_sum_of_two(1.0))
rule("sub")(_sum_of_two(-1.0))
rule("rsub")(_sum_of_two(-1.0, turned=True))
