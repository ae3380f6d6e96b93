"""Losses: one number of a batch is a sum of its parts."""

from __future__ import annotations

import math

from weft.models.capture.exported import Step
from weft.models.transform.captured.writer import Arguments, UnknownError, Writer, rule


@rule("cross_entropy_loss")
def _cross_entropy(w: Writer, step: Step) -> None:
    call = Arguments(step)
    logits, targets = (w.tensor(step.arguments[i]) for i in (0, 1))
    reduction, smoothing = call.at(3, "reduction", 1), call.at(5, "label_smoothing", 0.0)
    if call.at(4, "ignore_index", -100) >= 0:
        raise UnknownError  # how many targets count is in the numbers
    if call.at(2, "weight") is not None or smoothing or len(w.shape(logits)) != 2 or len(w.shape(targets)) != 1:
        raise UnknownError
    n, v = w.fresh("n"), w.fresh("v")
    made = w.add(step, "cross_entropy", [(logits, [(n,), (v,)]), (targets, [(n,)])], [(n,)], frozen=[v],
                 name=step.name if reduction == 0 else f"{step.name}.each", last=reduction == 0)
    if reduction:
        w.add(step, "einsum", [(made, [(n,)])], [], reduced=[n],
              scale=1 / w.shape(logits)[0] if reduction == 1 else 1.0)


@rule("mse_loss")
def _squared_error(w: Writer, step: Step) -> None:
    a, b = (w.tensor(step.arguments[i]) for i in (0, 1))
    if w.shape(a) != w.shape(b) or Arguments(step).at(2, "reduction", 1) != 1:
        raise UnknownError
    axes = w.axes(w.shape(a))
    apart = w.add(step, "add", [(a, axes), (b, axes)], axes, signs=(1.0, -1.0), name=f"{step.name}.apart", last=False)
    w.add(step, "einsum", [(apart, axes), (apart, axes)], [], reduced=[name for axis in axes for name in axis],
          scale=1 / math.prod(w.shape(a)))
