"""Losses: one number of a batch is a sum of its parts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.models.capture.exported import Step
from weft.models.transform.annotation import Axis
from weft.models.transform.captured.elementwise import elementwise
from weft.models.transform.captured.products import broadcast_all
from weft.models.transform.captured.writer import Arguments, UnknownError, Writer, rule

_NONE, _MEAN = 0, 1


@rule("cross_entropy_loss")
def _cross_entropy(w: Writer, step: Step) -> None:
    """A target that is ignored gives nothing, and does not count in the mean."""
    call = Arguments(step)
    logits, targets = (w.tensor(step.arguments[i]) for i in (0, 1))
    ignored = int(call.at(4, "ignore_index", -100))
    shape = w.shape(logits)
    if call.at(2, "weight") is not None or call.at(5, "label_smoothing", 0.0) or not shape or (
            "int" not in w.exported.metas[step.arguments[1].name].dtype):
        raise UnknownError
    axis = 1 if len(shape) > 1 else 0
    axes: list[Axis] = [(w.fresh("v" if i == axis else "n"),) for i in range(len(shape))]
    over, rest = axes[axis], [one for i, one in enumerate(axes) if i != axis]
    if axis != len(shape) - 1:
        logits = w.add(step, "einsum", [(logits, axes)], [*rest, over], name=f"{step.name}.turned", last=False)
    whole = call.at(3, "reduction", _MEAN)
    made = w.add(step, "cross_entropy", [(logits, [*rest, over]), (targets, rest)], rest, frozen=over, ignored=ignored,
                 name=step.name if whole == _NONE else f"{step.name}.each", last=whole == _NONE)
    if whole == _NONE:
        return
    names = [name for one in rest for name in one]
    total = w.add(step, "einsum", [(made, rest)], [], reduced=names, last=whole != _MEAN,
                  name=step.name if whole != _MEAN else f"{step.name}.sum")
    if whole != _MEAN:
        return
    counted = elementwise(w, step, "ne", [targets, ignored], name=f"{step.name}.counted", last=False)
    _divided(w, step, total, counted, rest)


def _divided(w: Writer, step: Step, total: str, counted: str, axes: Sequence[Axis]) -> None:
    """A sum over the number of what counts."""
    given = step.outputs[0]
    assert given is not None
    number = w.add(step, "cast", [(counted, axes)], axes, name=f"{step.name}.ones", last=False,
                   dtype=w.exported.metas[given].dtype, source="bool")
    count = w.add(step, "einsum", [(number, axes)], [], reduced=[name for one in axes for name in one],
                  name=f"{step.name}.count", last=False)
    share = w.add(step, "reciprocal", [(count, [])], [], name=f"{step.name}.share", last=False)
    w.add(step, "einsum", [(total, []), (share, [])], [])
    for name in (counted, number, count, share):
        tensor = w.builder.tensors[name]
        w.builder.tensors[name] = type(tensor)(name, tensor.shape, tensor.source, tensor.itemsize, False)


@rule("nll_loss", "nll_loss_nd")
def _likelihood(w: Writer, step: Step) -> None:
    """What is ignored looks up the first class, and counts nothing."""
    call = Arguments(step)
    x, targets = (w.tensor(step.arguments[i]) for i in (0, 1))
    whole, ignored, given = call.at(3, "reduction", _MEAN), int(call.at(4, "ignore_index", -100)), step.outputs[0]
    if call.at(2, "weight") is not None or len(w.shape(x)) != 2 or given is None:
        raise UnknownError
    counted = elementwise(w, step, "ne", [targets, ignored], name=f"{step.name}.counted", last=False)
    kept = elementwise(w, step, "where", [counted, targets, 0], name=f"{step.name}.kept", last=False)
    n, v, one = w.fresh("n"), w.fresh("v"), w.fresh("k")
    upright = w.add(step, "einsum", [(kept, [(n,)])], [(n,), ()], name=f"{step.name}.upright", last=False)
    each = w.add(step, "gather", [(x, [(n,), (v,)]), (upright, [(n,), (one,)])], [(n,), (one,)], reduced=[v], axis=1,
                 length=w.shape(x)[1], name=f"{step.name}.found", last=False)
    made = w.add(step, "where", [(counted, [(n,)]), (each, [(n,), ()])], [(n,)], last=False, name=f"{step.name}.own",
                 constants=(None, None, 0.0), dtype=w.exported.metas[given].dtype)
    out: list[Axis] = [(n,)] if whole == _NONE else []
    total = w.add(step, "einsum", [(made, [(n,)])], out, reduced=() if out else [n], scale=-1.0, last=whole != _MEAN,
                  name=step.name if whole != _MEAN else f"{step.name}.sum")
    if whole == _MEAN:
        _divided(w, step, total, counted, [(n,)])


def _reduced(w: Writer, step: Step, made: str, axes: Sequence[Axis], whole: int) -> None:
    names = [name for axis in axes for name in axis]
    w.add(step, "einsum", [(made, axes)], [], reduced=names,
          scale=1 / math.prod(w.shape(made)) if whole == _MEAN else 1.0)


def _apart(w: Writer, step: Step) -> tuple[str, list[Axis]]:
    """The difference of both tensors, of which either may lack dimensions."""
    a, b = (w.tensor(step.arguments[i]) for i in (0, 1))
    (left, right), axes = broadcast_all(w, [w.shape(a), w.shape(b)])
    return w.add(step, "add", [(a, left), (b, right)], axes, signs=(1.0, -1.0), name=f"{step.name}.apart",
                 last=False), axes


@rule("mse_loss")
def _squared_error(w: Writer, step: Step) -> None:
    whole = Arguments(step).at(2, "reduction", _MEAN)
    apart, axes = _apart(w, step)
    if whole == _NONE:
        w.add(step, "square", [(apart, axes)], axes)
        return
    w.add(step, "einsum", [(apart, axes), (apart, axes)], [], reduced=[name for axis in axes for name in axis],
          scale=1 / math.prod(w.shape(apart)) if whole == _MEAN else 1.0)


@rule("l1_loss", "smooth_l1_loss", "huber_loss")
def _distance(w: Writer, step: Step) -> None:
    call, kind = Arguments(step), step.target.removeprefix("torch.ops.aten.").split(".")[0]
    whole, bend = call.at(2, "reduction", _MEAN), call.at(3, "delta", call.at(3, "beta", 1.0))
    name = step.name if whole == _NONE else f"{step.name}.each"
    if kind == "l1_loss":
        each = elementwise(w, step, "abs", [_apart(w, step)[0]], name=name, last=whole == _NONE)
    else:
        each = elementwise(w, step, kind, [*step.arguments[:2], _NONE, float(bend)], name=name, last=whole == _NONE)
    if whole != _NONE:
        _reduced(w, step, each, w.axes(w.shape(each)), whole)


@rule("binary_cross_entropy_with_logits")
def _truth(w: Writer, step: Step) -> None:
    """softplus(x) - x y."""
    call = Arguments(step)
    x, y = (w.tensor(step.arguments[i]) for i in (0, 1))
    if call.at(2, "weight") is not None or call.at(3, "pos_weight") is not None or w.shape(x) != w.shape(y):
        raise UnknownError
    whole = call.at(4, "reduction", _MEAN)
    axes = w.axes(w.shape(x))
    risen = w.add(step, "softplus", [(x, axes)], axes, constants=(None, 1.0, 700.0), name=f"{step.name}.risen",
                  last=False)
    met = w.add(step, "einsum", [(x, axes), (y, axes)], axes, name=f"{step.name}.met", last=False)
    each = w.add(step, "add", [(risen, axes), (met, axes)], axes, signs=(1.0, -1.0), last=whole == _NONE,
                 name=step.name if whole == _NONE else f"{step.name}.each")
    if whole != _NONE:
        _reduced(w, step, each, axes, whole)
