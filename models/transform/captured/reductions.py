"""Sums, means, variances and extremes over dimensions; and losses: one number of a batch is a sum of its parts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from weft.models.capture.exported import Step
from weft.models.transform.captured.pointwise import elementwise, pointwise
from weft.models.transform.captured.writer import Rule, UnknownError, Writer, rule
from weft.models.transform.program import Axis


def dimensions(given: Any, rank: int) -> set[int]:
    """The dimensions that an argument names: all, where it names none."""
    dims: Iterable[int] = range(rank) if given is None or given == [] else [given] if isinstance(given, int) else given
    return {dim % rank for dim in dims} if rank else set()


def _reduction(mean: bool) -> Rule:
    def known(w: Writer, step: Step) -> None:
        x = w.tensor(step.arguments[0])
        axes = w.axes(w.shape(x))
        if w.exported.metas[step.arguments[0].name].dtype == "bool" and not mean:
            x = w.add(step, "cast", [(x, axes)], axes, name=".number", dtype="int64", source="bool")
        else:
            w.require_numbers(step)
        gone = dimensions(step.at(1, "dim"), len(axes))
        out = _kept(axes, gone, keep=bool(step.at(2, "keepdim", False)))
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
        x = w.tensor(step.arguments[0])
        axes = w.axes(w.shape(x))
        gone = dimensions(step.at(1, "dim"), len(axes))
        count = math.prod(w.shape(x)[i] for i in gone)
        given = step.at(2, "correction", step.keywords.get("unbiased", 1))
        less = 1 if given is None else float(given)
        if (len(step.arguments) > 1 and isinstance(step.arguments[1], bool)) or count <= less:
            raise UnknownError
        out = _kept(axes, gone, keep=bool(step.keywords.get("keepdim", step.at(3, "keepdim", False))))
        _, apart, reduced = centred(w, step, x, axes, _kept(axes, gone, keep=True))
        made = w.add(step, "einsum", [(apart, axes), (apart, axes)], out, reduced=reduced, scale=1 / (count - less),
                     name=".variance" if root else None)
        if root:
            w.add(step, "sqrt", [(made, out)], out)

    return known


def centred(w: Writer, step: Step, x: str, axes: Sequence[Axis], kept: Sequence[Axis]) -> tuple[str, str, list[str]]:
    """The mean of ``x`` over what is not ``kept``, what is left without it, and the names of what is not kept."""
    gone = [(name, size) for axis, size in zip(axes, w.shape(x), strict=True) if axis not in kept for name in axis]
    reduced = [name for name, _ in gone]
    middle = w.add(step, "einsum", [(x, axes)], kept, reduced=reduced, scale=1 / math.prod(size for _, size in gone),
                   name=".mean")
    return middle, w.add(step, "add", [(x, axes), (middle, kept)], axes, signs=(1.0, -1.0), name=".apart"), reduced


rule("var")(_variance(False))
rule("std")(_variance(True))


@rule("linalg_vector_norm", "norm")
def _norm(w: Writer, step: Step) -> None:
    """The root of a sum of squares."""
    if step.at(1, "ord", step.at(1, "p", 2)) != 2:
        raise UnknownError
    w.require_numbers(step)
    x = w.tensor(step.arguments[0])
    axes = w.axes(w.shape(x))
    gone = dimensions(step.at(2, "dim"), len(axes))
    out = _kept(axes, gone, keep=bool(step.at(3, "keepdim", False)))
    square = w.add(step, "einsum", [(x, axes), (x, axes)], out, reduced=[name for i in gone for name in axes[i]],
                   name=".square")
    w.add(step, "sqrt", [(square, out)], out)


@rule("amax", "amin", "argmax", "argmin", "logsumexp", "prod", "any", "all", "_is_all_true")
def _frozen(w: Writer, step: Step) -> None:
    """The captured operator itself; the dimensions that are gone are frozen."""
    if step.kind not in ("any", "all", "_is_all_true"):
        w.require_numbers(step)
    x = w.tensor(step.arguments[0])
    axes = w.axes(w.shape(x))
    gone = dimensions(step.at(1, "dim"), len(axes))
    w.call(step, [(x, axes)], _kept(axes, gone, keep=bool(step.at(2, "keepdim", False))),
           frozen=[name for i in gone for name in axes[i]])


_NONE, _MEAN = 0, 1


@rule("cross_entropy_loss")
def _cross_entropy(w: Writer, step: Step) -> None:
    """A target that is ignored gives nothing, and does not count in the mean."""
    logits, targets = (w.tensor(step.arguments[i]) for i in (0, 1))
    ignored = int(step.at(4, "ignore_index", -100))
    shape = w.shape(logits)
    if step.at(2, "weight") is not None or step.at(5, "label_smoothing", 0.0) or not shape or (
            "int" not in w.exported.metas[step.arguments[1].name].dtype):
        raise UnknownError
    axis = 1 if len(shape) > 1 else 0
    axes: list[Axis] = [(w.fresh("v" if i == axis else "n"),) for i in range(len(shape))]
    over, rest = axes[axis], [one for i, one in enumerate(axes) if i != axis]
    if axis != len(shape) - 1:
        logits = w.add(step, "einsum", [(logits, axes)], [*rest, over], name=".turned")
    whole = step.at(3, "reduction", _MEAN)
    made = w.add(step, "cross_entropy", [(logits, [*rest, over]), (targets, rest)], rest, frozen=over, ignored=ignored,
                 name=None if whole == _NONE else ".each")
    if whole == _NONE:
        return
    names = [name for one in rest for name in one]
    total = w.add(step, "einsum", [(made, rest)], [], reduced=names,
                  name=None if whole != _MEAN else ".sum")
    if whole != _MEAN:
        return
    counted = elementwise(w, step, "ne", [targets, ignored], name=".counted")
    _divided(w, step, total, counted, rest)


def _divided(w: Writer, step: Step, total: str, counted: str, axes: Sequence[Axis]) -> None:
    """A sum over the number of what counts."""
    number = w.add(step, "cast", [(counted, axes)], axes, name=".ones", dtype=w.given(step).dtype,
                   source="bool")
    count = w.add(step, "einsum", [(number, axes)], [], reduced=[name for one in axes for name in one], name=".count")
    share = w.add(step, "reciprocal", [(count, [])], [], name=".share")
    w.add(step, "einsum", [(total, []), (share, [])], [])
    for name in (counted, number, count, share):
        w.builder.tensors[name] = replace(w.builder.tensors[name], gradient=False)


@rule("nll_loss", "nll_loss_nd")
def _likelihood(w: Writer, step: Step) -> None:
    """What is ignored looks up the first class, and counts nothing."""
    x, targets = (w.tensor(step.arguments[i]) for i in (0, 1))
    whole, ignored, given = step.at(3, "reduction", _MEAN), int(step.at(4, "ignore_index", -100)), step.outputs[0]
    if step.at(2, "weight") is not None or len(w.shape(x)) != 2 or given is None:
        raise UnknownError
    counted = elementwise(w, step, "ne", [targets, ignored], name=".counted")
    kept = elementwise(w, step, "where", [counted, targets, 0], name=".kept")
    n, v, one = w.fresh("n"), w.fresh("v"), w.fresh("k")
    upright = w.add(step, "einsum", [(kept, [(n,)])], [(n,), ()], name=".upright")
    each = w.add(step, "gather", [(x, [(n,), (v,)]), (upright, [(n,), (one,)])], [(n,), (one,)], reduced=[v], axis=1,
                 length=w.shape(x)[1], name=".found")
    made = w.add(step, "where", [(counted, [(n,)]), (each, [(n,), ()])], [(n,)], name=".own",
                 constants=(None, None, 0.0), dtype=w.exported.metas[given].dtype)
    out: list[Axis] = [(n,)] if whole == _NONE else []
    total = w.add(step, "einsum", [(made, [(n,)])], out, reduced=() if out else [n], scale=-1.0,
                  name=None if whole != _MEAN else ".sum")
    if whole == _MEAN:
        _divided(w, step, total, counted, [(n,)])


#: Where the reduction stands among the arguments of losses of each element.
_REDUCTIONS = {"mse_loss": 2, "l1_loss": 2, "smooth_l1_loss": 2, "huber_loss": 2, "binary_cross_entropy_with_logits": 4}


@rule(*_REDUCTIONS)
def _of_each(w: Writer, step: Step) -> None:
    """The captured operator of each element, and a sum of these."""
    place = _REDUCTIONS[step.kind]
    whole = step.at(place, "reduction", _MEAN)
    if whole == _NONE:
        pointwise(w, step)
        return
    arguments = (*step.arguments[:place], _NONE, *step.arguments[place + 1:]) if len(step.arguments) > place else (
        step.arguments)
    keywords = step.keywords if len(step.arguments) > place else {**step.keywords, "reduction": _NONE}
    made = pointwise(w, replace(step, arguments=arguments, keywords=keywords), ".each")
    axes = w.axes(w.shape(made))
    w.add(step, "einsum", [(made, axes)], [], reduced=[name for axis in axes for name in axis],
          scale=1 / math.prod(w.shape(made)) if whole == _MEAN else 1.0)
