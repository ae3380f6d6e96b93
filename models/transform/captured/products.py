"""Products of matrices; a bias is an operator of its own, so that a product whose sum is cut adds it once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.models.capture.exported import Step
from weft.models.transform.annotation import Axis
from weft.models.transform.captured.writer import Arguments, UnknownError, Writer, rule

__all__ = ["biased", "broadcast"]


@rule("linear")
def _linear(w: Writer, step: Step) -> None:
    x, weight = (w.tensor(step.arguments[i]) for i in (0, 1))
    bias = Arguments(step).at(2, "bias")
    axes, out, inner = w.axes(w.shape(x)[:-1]), w.fresh("n"), w.fresh("k")
    biased(w, step, bias, [*axes, (out,)], [(x, [*axes, (inner,)]), (weight, [(out,), (inner,)])], inner)


@rule("addmm")
def _addmm(w: Writer, step: Step) -> None:
    if step.keywords.get("alpha", 1) != 1 or step.keywords.get("beta", 1) != 1:
        raise UnknownError
    bias, x, weight = step.arguments[:3]
    rows, columns, inner = (w.fresh(name) for name in "mnk")
    biased(w, step, bias, [(rows,), (columns,)],
            [(w.tensor(x), [(rows,), (inner,)]), (w.tensor(weight), [(inner,), (columns,)])], inner)


def biased(w: Writer, step: Step, bias: Any, output: Sequence[Axis], inputs: Sequence[tuple[str, Sequence[Axis]]],
            inner: str) -> None:
    if bias is None:
        w.add(step, "einsum", inputs, output, reduced=[inner])
        return
    product = w.add(step, "einsum", inputs, output, reduced=[inner], name=f"{step.name}.product", last=False)
    given = w.tensor(bias)
    w.add(step, "add", [(product, output), (given, output[len(output) - len(w.shape(given)):])], output)


@rule("matmul", "mm", "bmm")
def _matmul(w: Writer, step: Step) -> None:
    a, b = (w.tensor(step.arguments[i]) for i in (0, 1))
    one, other = w.shape(a), w.shape(b)
    if len(one) < 2 or len(other) < 2:
        raise UnknownError
    rows, columns, inner = (w.fresh(name) for name in "mnk")
    left, right, batch = broadcast(w, one[:-2], other[:-2])
    w.add(step, "einsum", [(a, [*left, (rows,), (inner,)]), (b, [*right, (inner,), (columns,)])],
          [*batch, (rows,), (columns,)], reduced=[inner])


def broadcast(w: Writer, one: Sequence[int], other: Sequence[int]) -> tuple[list[Axis], list[Axis], list[Axis]]:
    """Axes of two shapes, aligned at their ends, and of what comes out."""
    rank = max(len(one), len(other))
    sides: list[list[Axis]] = [[], [], []]
    for i in range(rank):
        a, b = (shape[i - rank + len(shape)] if i >= rank - len(shape) else None for shape in (one, other))
        axis: Axis = () if max(a or 1, b or 1) == 1 else (w.fresh(),)
        for size, side in ((a, sides[0]), (b, sides[1]), (max(a or 1, b or 1), sides[2])):
            if size is not None:
                side.append(axis if size != 1 else ())
    return sides[0], sides[1], sides[2]
