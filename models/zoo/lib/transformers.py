"""The transformer layer: attention and a feed-forward part on one residual, and the positions of its norms.

Attention: plain, with grouped queries, in windows, from latent keys and values; fused or kernel by kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from weft.models.graph.operators import Parameter, Split, Tensor, Work, causal_share
from weft.models.zoo.lib.builder import (
    GraphBuilder,
    Passes,
    Saved,
    add,
    along_rows,
    feed_forward,
    linear,
    norm,
    pointwise,
)
from weft.models.zoo.lib.experts import ExpertSizes, mixture_of_experts


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """The properties of a transformer layer.

    ``hidden``: width inside the feed-forward part. ``bias``: of the feed-forward part, and of norms unless
    ``norm_bias`` says otherwise. ``place``: of norms, "before" each part, "after" its residual, on its "output" before
    that is added, or "both" before and on the output. ``parallel``: attention and feed-forward part side by side on
    one residual; ``one_norm``: behind one norm. ``experts``: in place of the feed-forward part.
    """

    attention: AttentionSizes
    hidden: int
    activation: str = "gelu"
    norm: str = "layer_norm"
    bias: bool = True
    norm_bias: bool | None = None
    place: Literal["before", "after", "output", "both"] = "before"
    parallel: bool = False
    one_norm: bool = False
    experts: ExpertSizes | None = None

    def normed(self, b: GraphBuilder, x: Tensor, name: str) -> Tensor:
        """``x`` after a norm of the layer's kind."""
        return norm(b, x, name, self.norm, bias=self.bias if self.norm_bias is None else self.norm_bias)


def transformer_layer(b: GraphBuilder, x: Tensor, sizes: LayerSizes, *, memory: Tensor | None = None,
                      score_bias: Sequence[Tensor] = ()) -> Tensor:
    """Attention, attention to ``memory`` if there is one, feed-forward; each with its residual.

    Attention to ``memory`` has neither grouped queries nor rotated positions.
    """
    if sizes.parallel:
        inner = sizes.normed(b, x, "norm1")
        attended = attention(b, inner, sizes.attention, score_bias=score_bias)
        result = _forward(b, inner if sizes.one_norm else sizes.normed(b, x, "norm2"), sizes)
        return add(b, result, add(b, attended, x, "add1"), "add2")
    x = _part(b, x, sizes, "1", lambda inner: attention(b, inner, sizes.attention, score_bias=score_bias))
    if memory is not None:
        cross = replace(sizes.attention, kv_heads=None, out_bias=None, causal=False, rotary=False)
        x = _part(b, x, sizes, "_cross", lambda inner: attention(b, inner, cross, "cross", memory=memory))
    return _part(b, x, sizes, "2", lambda inner: _forward(b, inner, sizes))


def _part(b: GraphBuilder, x: Tensor, sizes: LayerSizes, name: str, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """One part of a layer with its residual and its norms."""
    y = compute(sizes.normed(b, x, f"norm{name}") if sizes.place in ("before", "both") else x)
    if sizes.place in ("output", "both"):
        y = sizes.normed(b, y, f"norm{name}_out")
    x = add(b, y, x, f"add{name}")
    return sizes.normed(b, x, f"norm{name}") if sizes.place == "after" else x


def _forward(b: GraphBuilder, x: Tensor, sizes: LayerSizes) -> Tensor:
    if sizes.experts is not None:
        return mixture_of_experts(b, x, sizes.experts, sizes.activation, bias=sizes.bias)
    return feed_forward(b, x, sizes.hidden, sizes.activation, bias=sizes.bias)


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """Attention from latent vectors (DeepSeek-V2, 2024, section 2.1).

    Keys and values are made from a vector of ``key_rank`` numbers a token, queries from one of ``query_rank``
    (``None``: from the hidden state). A head's queries and keys have ``plain`` numbers and ``rotary`` rotated ones,
    which its keys share with those of all heads; its values have ``value``.
    """

    query_rank: int | None
    key_rank: int
    plain: int
    rotary: int
    value: int


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """The properties of a model's attention.

    ``head_size``: width of a head (default: ``heads`` share the width). ``kv_heads`` < ``heads`` share keys and values
    (grouped queries). ``bias``: of the projections, ``key_bias``: of the keys' too; ``out_bias``: of the last one,
    where that differs. ``fused``: scores, softmax and context in one kernel that keeps queries, keys, values, its
    output and one fp32 number a row (FlashAttention, Dao et al. 2022), and computes the scores, and dropout's mask,
    again in its backward. ``causal``: a token sees itself and those before it; a fused kernel skips what is masked, of
    long sequences half of all products (Dao, "FlashAttention-2", 2023, section 3.1), one kernel by kernel does not.
    ``rotary``: positions are a rotation of queries and keys. ``window``: tokens that each token sees at most, which a
    fused kernel makes use of too. ``qk_norm``: queries and keys are normalised before, by one scale
    for all heads ("head"), one for each ("heads") or over all heads together ("width"), with the layer's kind of
    ``norm``. ``sinks``: a learned logit a head beside the scores. ``latent``: sizes of latent keys and values.
    ``parts``: the tokens at hand are one of so many equal parts of a sequence, whose keys and values are all attended
    to (context parallelism); causal ones are dealt out so that each part sees as many keys.
    """

    heads: int
    head_size: int | None = None
    kv_heads: int | None = None
    bias: bool = True
    out_bias: bool | None = None
    key_bias: bool = True
    fused: bool = False
    causal: bool = False
    rotary: bool = False
    window: int | None = None
    qk_norm: Literal["head", "heads", "width"] | None = None
    norm: str = "rms_norm"
    sinks: bool = False
    latent: LatentSizes | None = None
    parts: int = 1


@dataclass(frozen=True, slots=True)
class _Core:
    """What is between the projections: ``sources`` hold queries, keys and values of ``heads`` in ``groups``."""

    sources: Sequence[Tensor]
    queries: int
    keys: int
    heads: int
    groups: int
    key_size: int
    value_size: int
    sinks: tuple[Parameter, ...] = ()

    def flops(self, lead: int, size: int, keys: float | None = None) -> float:
        """Of one product with every key (or ``keys`` of them), of ``size`` numbers a head."""
        return 2.0 * lead * self.queries * (keys or self.keys) * self.heads * size


def _seen(keys: int, sizes: AttentionSizes) -> float:
    """The mean number of keys that a query of fused attention attends to, over all queries."""
    window = min(keys, sizes.window or keys)
    return window * causal_share(keys, window) if sizes.causal else window


def attention(b: GraphBuilder, x: Tensor, sizes: AttentionSizes, name: str = "attention", *,
              memory: Tensor | None = None, score_bias: Sequence[Tensor] = (), gate: Tensor | None = None) -> Tensor:
    """Multi-head attention, from the projections to the output projection.

    ``memory``: the source of keys and values (default: ``x``). ``score_bias``: tensors added to the scores. ``gate``:
    multiplies the result before the output projection.
    """
    width, queries, heads = x.shape[-1], x.shape[-2], sizes.heads
    size, groups = sizes.head_size or width // heads, sizes.kv_heads or heads
    keys, key_size, value_size = queries * sizes.parts, size, size
    if sizes.latent is not None:
        sources = [_latent(b, x, sizes, sizes.latent, name)]
        groups, key_size, value_size = heads, sizes.latent.plain + sizes.latent.rotary, sizes.latent.value
    elif memory is None:
        sources = [_projected(b, x, sizes, size, groups, name)]
    else:
        sources = [linear(b, x, heads * size, f"{name}.q", bias=sizes.bias, units=heads),
                   linear(b, memory, 2 * groups * size, f"{name}.kv", units=groups,
                          bias=sizes.bias and (sizes.key_bias or groups * size))]
        keys = memory.shape[-2]
    sinks = (b.parameter(f"{name}.sinks", heads),) if sizes.sinks else ()
    core = _Core(sources, queries, keys, heads, groups, key_size, value_size, sinks)
    shape = (*x.shape[:-2], queries, heads * value_size)
    if sizes.fused and not score_bias:
        context = _fused(b, core, shape, _seen(keys, sizes), name)
    else:
        context = _scored(b, core, shape, score_bias, name)
    if gate is not None:
        context = pointwise(b, "multiply", f"{name}.gated", [context, gate], keeps="inputs")
    return linear(b, context, width, f"{name}.dense", bias=sizes.bias if sizes.out_bias is None else sizes.out_bias,
                  input_units=groups)


def _projected(b: GraphBuilder, x: Tensor, sizes: AttentionSizes, size: int, groups: int, name: str) -> Tensor:
    """Queries, keys and values side by side, normalised and rotated if the model does so."""
    heads = sizes.heads
    both = linear(b, x, (heads + 2 * groups) * size, f"{name}.qkv", units=groups,
                  bias=sizes.bias and (sizes.key_bias or (heads + groups) * size))
    if sizes.qk_norm is not None:
        both = _normed(b, both, sizes, size, groups, f"{name}.qk_norm")
    return pointwise(b, "rotary", f"{name}.rotary", [both], flops=3.0) if sizes.rotary else both


def _normed(b: GraphBuilder, x: Tensor, sizes: AttentionSizes, size: int, groups: int, name: str) -> Tensor:
    """Queries and keys normalised, values unchanged. Cut by heads unless the norm is over all of them."""
    scales = {"head": (1, 1), "heads": (sizes.heads, groups), "width": (sizes.heads, groups)}[sizes.qk_norm or "head"]
    vectors = [b.parameter(f"{name}.{of}", count * size) for of, count in zip("qk", scales, strict=True)]
    y, last = b.tensor(name, x.shape), len(x.shape) - 1
    rows = math.prod(x.shape[:-1]) * (sizes.heads + groups)
    statistics = b.tensor(f"{name}.statistics", (*x.shape[:-1], sizes.heads + groups), "float32")
    cut = [] if sizes.qk_norm == "width" else [
        Split("heads", groups, {x.name: last}, {y.name: last},
              frozenset(p.name for p in vectors) if sizes.qk_norm == "heads" else frozenset())]
    b.add(sizes.norm, name, [x], [y],
          work=Passes(5.0 * rows * size, input_flops=8.0 * rows * size,
                      weight_grad=Work(2.0 * rows * size, 0, sum(p.bytes for p in vectors))), parameters=vectors,
          saved=Saved([x, statistics], internal=[statistics]), splits=[*along_rows(b, x, y), *cut])
    return y


def _latent(b: GraphBuilder, x: Tensor, sizes: AttentionSizes, latent: LatentSizes, name: str) -> Tensor:
    """Queries, keys and values of all heads side by side, made from latent vectors."""
    heads, whole = sizes.heads, latent.plain + latent.rotary
    source = x
    if latent.query_rank is not None:
        source = linear(b, x, latent.query_rank, f"{name}.q_down", bias=sizes.bias)
        source = norm(b, source, f"{name}.q_norm", "rms_norm")
    queries = linear(b, source, heads * whole, f"{name}.q", bias=False, units=heads)
    down = linear(b, x, latent.key_rank + latent.rotary, f"{name}.kv_down", bias=sizes.bias)
    compressed = b.tensor(f"{name}.kv_latent", (*x.shape[:-1], latent.key_rank), base=down)
    b.add("select", f"{name}.kv_latent", [down], [compressed],
          work=Passes(forward=Work(), input_grad=Work(0, compressed.bytes, down.bytes)),
          splits=along_rows(b, down, compressed))
    up = linear(b, norm(b, compressed, f"{name}.kv_norm", "rms_norm"), heads * (latent.plain + latent.value),
                f"{name}.kv", bias=False, units=heads)
    y = b.tensor(f"{name}.rotary", (*x.shape[:-1], heads * (2 * whole + latent.value)))
    last = len(y.shape) - 1
    b.add("rotary", f"{name}.rotary", [queries, up, down], [y], work=Passes(3.0 * math.prod(y.shape)),
          splits=[*along_rows(b, queries, y, up, down),
                  Split("heads", heads, {queries.name: last, up.name: last}, {y.name: last})])
    return y


def _fused(b: GraphBuilder, core: _Core, shape: tuple[int, ...], keys: float, name: str) -> Tensor:
    context, lead = b.tensor(f"{name}.core", shape), math.prod(shape[:-2])
    rows = b.tensor(f"{name}.core.statistics", (*shape[:-2], core.heads, shape[-2]), "float32")
    flops = core.flops(lead, core.key_size + core.value_size, keys)
    last = len(shape) - 1
    splits = _by_head({tensor: last for tensor in core.sources}, context, last, core.groups, len(shape), core.sinks)
    b.add("attention", f"{name}.core", core.sources, [context], work=Passes(flops, input_flops=2.5 * flops),
          parameters=core.sinks, saved=Saved([*core.sources, context, rows], internal=[rows]), splits=splits)
    return context


def _scored(b: GraphBuilder, core: _Core, shape: tuple[int, ...], score_bias: Sequence[Tensor], name: str) -> Tensor:
    heads, groups, sources = core.heads, core.groups, core.sources
    square, at, last = (*shape[:-2], heads, shape[-2], core.keys), len(shape) - 2, len(shape) - 1
    lead = math.prod(shape[:-2])
    flops = core.flops(lead, core.key_size)
    scores = b.tensor(f"{name}.score", square)
    b.add("matmul", f"{name}.score", sources, [scores], work=Passes(flops, input_flops=2 * flops), saved=Saved(sources),
          splits=_by_head({tensor: last for tensor in sources}, scores, at, groups, len(shape)))
    probabilities = b.tensor(f"{name}.softmax", square)
    added = {scores: at, **{tensor: len(tensor.shape) - 3 for tensor in score_bias}}
    b.add("softmax", f"{name}.softmax", [scores, *score_bias], [probabilities], work=Passes(5.0 * math.prod(square)),
          parameters=core.sinks, saved=Saved([probabilities]),
          splits=_by_head(added, probabilities, at, heads, len(shape), core.sinks))
    if b.dropout:
        dropped = b.tensor(f"{name}.dropout", square)
        mask = b.tensor(f"{name}.dropout.mask", square, "bool")
        b.add("dropout", f"{name}.dropout", [probabilities], [dropped], work=Passes(2.0 * math.prod(square)),
              saved=Saved([mask], internal=[mask]),
              splits=_by_head({probabilities: at}, dropped, at, heads, len(shape)))
        probabilities = dropped
    context = b.tensor(f"{name}.context", shape)
    values, flops = sources[-1], core.flops(lead, core.value_size)
    b.add("matmul", f"{name}.context", [probabilities, values], [context], work=Passes(flops, input_flops=2 * flops),
          saved=Saved([probabilities, values]),
          splits=_by_head({probabilities: at, values: last}, context, last, groups, len(shape)))
    return context


def _by_head(inputs: Mapping[Tensor, int], out: Tensor, axis: int, groups: int, axes: int,
             parameters: Sequence[Parameter] = ()) -> list[Split]:
    """The splits by head (the axis of each input, and of ``out``) and along the axes before the sequence.

    An input without those axes, such as one bias for the whole batch, stays whole there.
    """
    lead = [Split(("batch", "rows")[i], out.shape[i],
                  {t.name: i for t in inputs if len(t.shape) > 3 - (axes - 3) or t.shape[0] == out.shape[0]
                   if i < len(t.shape) and t.shape[i] == out.shape[i]}, {out.name: i}) for i in range(axes - 2)]
    return [*lead, Split("heads", groups, {t.name: at for t, at in inputs.items()}, {out.name: axis},
                         frozenset(parameter.name for parameter in parameters))]
