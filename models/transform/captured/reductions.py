"""Sums, means, variances and extremes over dimensions; and losses: one number of a batch is a sum of its parts.

In norms, softmax and attention, what is normalized over is frozen, but for a batch's statistics, which are sums; so are
the keys of a query.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from weft.models.capture.exported import Step, refs
from weft.models.transform.captured.indices import gathered
from weft.models.transform.captured.pointwise import elementwise, pointwise
from weft.models.transform.captured.products import upright
from weft.models.transform.captured.writer import UnknownError, Writer, rule
from weft.models.transform.program import Axis


def dimensions(given: Any, rank: int) -> set[int]:
    """The dimensions that an argument names: all, where it names none."""
    dims: Iterable[int] = range(rank) if given is None or given == [] else [given] if isinstance(given, int) else given
    return {dim % rank for dim in dims} if rank else set()


@rule("sum", "mean")
def _reduction(w: Writer, step: Step) -> None:
    mean = step.kind == "mean"
    x, axes = w.first(step)
    if w.exported.metas[step.arguments[0].name].dtype == "bool" and not mean:
        x = w.add(step, "cast", [(x, axes)], axes, name=".number", dtype="int64", source="bool")
    else:
        w.require_numbers(step)
    gone = dimensions(step.at(1, "dim"), len(axes))
    out = _kept(axes, gone, keep=bool(step.at(2, "keepdim", False)))
    count = math.prod(w.shape(x)[i] for i in gone)
    w.add(step, "einsum", [(x, axes)], out, reduced=[name for i in gone for name in axes[i]],
          scale=1 / count if mean else 1.0)


def _kept(axes: Sequence[Axis], gone: set[int], *, keep: bool) -> list[Axis]:
    return [() if i in gone else axis for i, axis in enumerate(axes) if keep or i not in gone]


@rule("var", "std")
def _variance(w: Writer, step: Step) -> None:
    """The mean of squares of what is left without the mean: sums of sums, where a dimension is cut."""
    root = step.kind == "std"
    w.require_numbers(step)
    x, axes = w.first(step)
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


def centred(w: Writer, step: Step, x: str, axes: Sequence[Axis], kept: Sequence[Axis]) -> tuple[str, str, list[str]]:
    """The mean of ``x`` over what is not ``kept``, what is left without it, and the names of what is not kept."""
    gone = [(name, size) for axis, size in zip(axes, w.shape(x), strict=True) if axis not in kept for name in axis]
    reduced = [name for name, _ in gone]
    middle = w.add(step, "einsum", [(x, axes)], kept, reduced=reduced, scale=1 / math.prod(size for _, size in gone),
                   name=".mean")
    return middle, w.add(step, "add", [(x, axes), (middle, kept)], axes, signs=(1.0, -1.0), name=".apart"), reduced


@rule("linalg_vector_norm", "norm")
def _norm(w: Writer, step: Step) -> None:
    """The root of a sum of squares."""
    if step.at(1, "ord", step.at(1, "p", 2)) != 2:
        raise UnknownError
    w.require_numbers(step)
    x, axes = w.first(step)
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
    x, axes = w.first(step)
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


@rule("nll_loss", "nll_loss_nd")
def _likelihood(w: Writer, step: Step) -> None:
    """What is ignored looks up the first class, and counts nothing."""
    x, targets = (w.tensor(step.arguments[i]) for i in (0, 1))
    whole, ignored, given = step.at(3, "reduction", _MEAN), int(step.at(4, "ignore_index", -100)), step.outputs[0]
    if step.at(2, "weight") is not None or len(w.shape(x)) != 2 or given is None:
        raise UnknownError
    counted = elementwise(w, step, "ne", [targets, ignored], name=".counted")
    kept = elementwise(w, step, "where", [counted, targets, 0], name=".kept")
    each, n = gathered(w, step, x, upright(w, step, kept, 1), 1, ".found"), w.fresh("n")
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


@rule("layer_norm", "rms_norm")
def _over_last(w: Writer, step: Step) -> None:
    """The captured operator itself."""
    x = w.tensor(step.arguments[0])
    axes = w.every(x)
    own = axes[len(axes) - len(step.arguments[1]):]
    weights = dict.fromkeys(w.names[name] for name in refs((step.arguments[2:], step.keywords)))
    w.call(step, [(x, axes), *((one, own) for one in weights)], axes, frozen=[name for axis in own for name in axis])


@rule("group_norm")
def _group_norm(w: Writer, step: Step) -> None:
    """Groups may be cut; of channels that are one dimension, groups change slowest."""
    x, groups = w.tensor(step.arguments[0]), step.arguments[1]
    weight, bias = step.at(2, "weight"), step.at(3, "bias")
    if weight is None and bias is not None:
        raise UnknownError
    n, g, c = (w.fresh(name) for name in "ngc")
    places: list[Axis] = [(w.fresh(),) for _ in w.shape(x)[2:]]
    channels: Axis = (g, c)
    inputs: list[tuple[str, Sequence[Axis]]] = [(x, [(n,), channels, *places])]
    inputs += [(w.tensor(one), [channels]) for one in (weight, bias) if one is not None]
    over = (c, *(name for axis in places for name in axis))
    w.add(step, "norm", inputs, [(n,), channels, *places], frozen=over, over=over, eps=float(step.at(4, "eps", 1e-5)),
          sizes={g: groups, c: w.shape(x)[1] // groups})


@rule("batch_norm", "instance_norm")
def _batch_norm(w: Writer, step: Step) -> None:
    """In training the mean and the variance are sums over the batch, so that a batch that is cut has the statistics of
    the whole. Running ones are carried to the next step; so is what instance norms keep not: they are refused."""
    _, weight, bias, mean, variance, training, momentum, eps, *_ = step.arguments
    x = w.tensor(step.arguments[0])
    instance = "instance_norm" in step.target
    if instance and (mean is not None or not training):
        raise UnknownError
    n, c, *places = (w.fresh(name) for name in ("n", "c", *("d" for _ in w.shape(x)[2:])))
    axes: list[Axis] = [(n,), (c,), *((name,) for name in places)]
    kept: list[Axis] = [(n,), (c,)] if instance else [(c,)]
    if training:
        middle, apart, gone = centred(w, step, x, axes, kept)
        count = math.prod(w.shape(x)) // math.prod(w.shape(middle))
        spread = w.add(step, "einsum", [(apart, axes), (apart, axes)], kept, reduced=gone, scale=1 / count,
                       name=".variance")
        if mean is not None and (variance is None or momentum is None):
            raise UnknownError
        for buffer, now, what, share in () if mean is None else (
                (mean, middle, "mean", momentum), (variance, spread, "variance", momentum * count / (count - 1))):
            w.keeps(buffer.name, w.add(step, "add", [(w.tensor(buffer), kept), (now, kept)], kept,
                                       name=f".running_{what}", signs=(1 - float(momentum), float(share))))
    else:
        apart = w.add(step, "add", [(x, axes), (w.tensor(mean), kept)], axes, signs=(1.0, -1.0), name=".apart")
        spread = w.tensor(variance)
    shifted = w.add(step, "add", [(spread, kept)], kept, signs=(1.0,), constant=float(eps), name=".shifted")
    scale = w.add(step, "rsqrt", [(shifted, kept)], kept, name=".scale")
    inputs: list[tuple[str, Iterable[Axis]]] = [(apart, axes), (scale, kept)]
    inputs += [(w.tensor(one), [(c,)]) for one in (weight,) if one is not None]
    made = w.add(step, "einsum", inputs, axes, name=None if bias is None else ".scaled")
    if bias is not None:
        w.add(step, "add", [(made, axes), (w.tensor(bias), [(c,)])], axes)


@rule("_weight_norm")
def _weight_norm(w: Writer, step: Step) -> None:
    """A direction times a length, of each place along one dimension."""
    direction, length = (w.tensor(step.arguments[i]) for i in (0, 1))
    axis = step.at(2, "dim", 0) % len(w.shape(direction))
    axes = w.axes(w.shape(direction))
    kept: list[Axis] = [one if i == axis else () for i, one in enumerate(axes)]
    gone = [name for i, one in enumerate(axes) for name in one if i != axis]
    square = w.add(step, "einsum", [(direction, axes), (direction, axes)], kept, reduced=gone, name=".square")
    scale = w.add(step, "rsqrt", [(square, kept)], kept, name=".scale")
    w.add(step, "einsum", [(direction, axes), (length, kept), (scale, kept)], axes)


@rule("softmax", "_softmax", "log_softmax", "_log_softmax")
def _softmax(w: Writer, step: Step) -> None:
    w.require_numbers(step)
    x = w.tensor(step.arguments[0])
    axes = w.every(x)
    over = axes[step.arguments[1]][0]
    w.add(step, step.kind.lstrip("_"), [(x, axes)], axes, frozen=[over], over=over)


@rule("scaled_dot_product_attention")
def _attention(w: Writer, step: Step) -> None:
    """Heads that share keys are (keys' heads, heads of each); a mask may lack any of the names."""
    q, k, v = (w.tensor(step.arguments[i]) for i in range(3))
    mask, rank = step.at(3, "attn_mask"), len(w.shape(q))
    if step.at(4, "dropout_p", 0.0) or rank < 2 or rank != len(w.shape(k)) or w.shape(k)[:-2] != w.shape(v)[:-2]:
        raise UnknownError
    shared = bool(step.at(7, "enable_gqa", False)) and w.shape(q)[-3] != w.shape(k)[-3]
    leading = rank - 3 if shared else rank - 2
    if w.shape(q)[:leading] != w.shape(k)[:leading]:
        raise UnknownError
    lead: list[Axis] = [(w.fresh({2: "bh", 1: "b"}.get(leading, "")[i:i + 1]),) for i in range(leading)]
    s, t, d, e = (w.fresh(name) for name in "stde")
    heads: tuple[list[Axis], list[Axis]] = (lead, lead)
    sizes: dict[str, int] = {}
    if shared:
        h, r = w.fresh("h"), w.fresh("r")
        heads = [*lead, (h, r)], [*lead, (h,)]
        sizes = {h: w.shape(k)[-3], r: w.shape(q)[-3] // w.shape(k)[-3]}
    scale = step.keywords.get("scale", step.at(6, "scale"))
    extra: dict[str, Any] = {} if scale is None else {"scale": float(scale)}
    inputs: list[tuple[str, Sequence[Axis]]] = [
        (q, [*heads[0], (s,), (d,)]), (k, [*heads[1], (t,), (d,)]), (v, [*heads[1], (t,), (e,)])]
    if mask is not None:
        given, whole = w.tensor(mask), [*heads[0], (s,), (t,)]
        own = whole[len(whole) - len(w.shape(given)):]
        if len(own) < len(w.shape(given)):
            raise UnknownError
        full = [*w.shape(q)[:-1], w.shape(k)[-2]][len(whole) - len(own):]
        if any(size not in (1, wanted) for size, wanted in zip(w.shape(given), full, strict=True)):
            raise UnknownError
        inputs.append((given, [() if size == 1 else axis for size, axis in zip(w.shape(given), own, strict=True)]))
        extra["mask"] = "truths" if w.exported.metas[mask.name].dtype == "bool" else "added"
    w.add(step, "attention", inputs, [*heads[0], (s,), (e,)], frozen=[t, d, e], sizes=sizes,
          causal=bool(step.at(5, "is_causal", False)), **extra)
