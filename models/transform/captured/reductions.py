"""Sums, means, variances and extremes over dimensions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from weft.models.capture.exported import Step
from weft.models.transform.annotation import Axis
from weft.models.transform.captured.writer import Arguments, Rule, UnknownError, Writer, rule

__all__ = ["dimensions"]


def dimensions(given: Any, rank: int) -> set[int]:
    """The dimensions that an argument names: all, where it names none."""
    dims: Iterable[int] = range(rank) if given is None or given == [] else [given] if isinstance(given, int) else given
    return {dim % rank for dim in dims} if rank else set()


def _reduction(mean: bool) -> Rule:
    def known(w: Writer, step: Step) -> None:
        x = w.tensor(step.arguments[0])
        axes = w.axes(w.shape(x))
        if w.exported.metas[step.arguments[0].name].dtype == "bool" and not mean:
            x = w.add(step, "cast", [(x, axes)], axes, name=f"{step.name}.number", last=False, dtype="int64",
                      source="bool")
        else:
            w.require_numbers(step)
        call = Arguments(step)
        gone = dimensions(call.at(1, "dim"), len(axes))
        out = _kept(axes, gone, keep=bool(call.at(2, "keepdim", False)))
        count = math.prod(w.shape(x)[i] for i in gone)
        w.add(step, "einsum", [(x, axes)], out, reduced=[name for i in gone for name in axes[i]],
              scale=1 / count if mean else 1.0)

    return known


def _kept(axes: Sequence[Axis], gone: set[int], *, keep: bool) -> list[Axis]:
    return [() if i in gone else axis for i, axis in enumerate(axes) if keep or i not in gone]


rule("sum")(_reduction(False))
rule("mean")(_reduction(True))


def _variance(root: bool) -> Rule:
    """The mean of squares of what is left without the mean: sums of sums, where a dimension is cut."""
    def known(w: Writer, step: Step) -> None:
        w.require_numbers(step)
        call = Arguments(step)
        x = w.tensor(step.arguments[0])
        axes = w.axes(w.shape(x))
        gone = dimensions(call.at(1, "dim"), len(axes))
        count = math.prod(w.shape(x)[i] for i in gone)
        given = call.at(2, "correction", step.keywords.get("unbiased", 1))
        less = 1 if given is None else float(given)
        if (len(step.arguments) > 1 and isinstance(step.arguments[1], bool)) or count <= less:
            raise UnknownError
        reduced = [name for i in gone for name in axes[i]]
        kept = _kept(axes, gone, keep=True)
        middle = w.add(step, "einsum", [(x, axes)], kept, reduced=reduced, scale=1 / count, name=f"{step.name}.mean",
                       last=False)
        apart = w.add(step, "add", [(x, axes), (middle, kept)], axes, signs=(1.0, -1.0), name=f"{step.name}.apart",
                      last=False)
        out = _kept(axes, gone, keep=bool(step.keywords.get("keepdim", call.at(3, "keepdim", False))))
        made = w.add(step, "einsum", [(apart, axes), (apart, axes)], out, reduced=reduced, scale=1 / (count - less),
                     name=f"{step.name}.variance" if root else step.name, last=not root)
        if root:
            w.add(step, "sqrt", [(made, out)], out)

    return known


rule("var")(_variance(False))
rule("std")(_variance(True))


@rule("linalg_vector_norm", "norm")
def _norm(w: Writer, step: Step) -> None:
    """The root of a sum of squares."""
    call = Arguments(step)
    if call.at(1, "ord", call.at(1, "p", 2)) != 2:
        raise UnknownError
    w.require_numbers(step)
    x = w.tensor(step.arguments[0])
    axes = w.axes(w.shape(x))
    gone = dimensions(call.at(2, "dim"), len(axes))
    out = _kept(axes, gone, keep=bool(call.at(3, "keepdim", False)))
    square = w.add(step, "einsum", [(x, axes), (x, axes)], out, reduced=[name for i in gone for name in axes[i]],
                   name=f"{step.name}.square", last=False)
    w.add(step, "sqrt", [(square, out)], out)


@rule("amax", "amin", "argmax", "argmin", "logsumexp", "prod", "any", "all", "_is_all_true")
def _frozen(w: Writer, step: Step) -> None:
    """The captured operator itself; the dimensions that are gone are frozen."""
    if step.target.split(".")[3] not in ("any", "all", "_is_all_true"):
        w.require_numbers(step)
    call, x = Arguments(step), w.tensor(step.arguments[0])
    axes = w.axes(w.shape(x))
    gone = dimensions(call.at(1, "dim"), len(axes))
    w.call(step, [(x, axes)], _kept(axes, gone, keep=bool(call.at(2, "keepdim", False))),
           frozen=[name for i in gone for name in axes[i]])
