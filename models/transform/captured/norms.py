"""Norms, softmax and attention: what is normalized over is frozen, but for a batch's statistics, which are sums; so are
the keys of a query."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from weft.models.capture.exported import Step, refs
from weft.models.transform.captured.reductions import centred
from weft.models.transform.captured.writer import Rule, UnknownError, Writer, rule
from weft.models.transform.program import Axis


@rule("layer_norm", "rms_norm")
def _over_last(w: Writer, step: Step) -> None:
    """The captured operator itself."""
    x = w.tensor(step.arguments[0])
    axes: list[Axis] = [(w.fresh(),) for _ in w.shape(x)]
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


def _softmax(kind: str) -> Rule:
    def known(w: Writer, step: Step) -> None:
        w.require_numbers(step)
        x = w.tensor(step.arguments[0])
        axes: list[Axis] = [(w.fresh(),) for _ in w.shape(x)]
        over = axes[step.arguments[1]][0]
        w.add(step, kind, [(x, axes)], axes, frozen=[over], over=over)

    return known


rule("softmax", "_softmax")(_softmax("softmax"))
rule("log_softmax", "_log_softmax")(_softmax("log_softmax"))


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
