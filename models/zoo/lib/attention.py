"""Attention and the transformer layer around it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from weft.models.graph.operators import Split, Tensor
from weft.models.zoo.lib.blocks import add, feed_forward, linear, norm, pointwise
from weft.models.zoo.lib.builder import Builder, Passes, Saved

__all__ = ["AttentionSizes", "LayerSizes", "attention", "transformer_layer"]


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """What a model's attention is like.

    ``head_size``: width of a head (default: ``heads`` share the width). ``kv_heads`` < ``heads`` share keys and values
    (grouped queries). ``bias``: of the projections; ``out_bias``: of the last one, where that differs. ``fused``:
    scores, softmax and context in one kernel that keeps queries, keys, values, its output and one fp32 number a row
    (FlashAttention, Dao et al. 2022), and computes the scores, and dropout's mask, again in its backward. ``rotary``:
    positions are a rotation of queries and keys.
    """

    heads: int
    head_size: int | None = None
    kv_heads: int | None = None
    bias: bool = True
    out_bias: bool | None = None
    fused: bool = False
    rotary: bool = False


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """What a transformer layer is like; ``hidden``: width inside the feed-forward part."""

    attention: AttentionSizes
    hidden: int
    activation: str = "gelu"
    norm: str = "layer_norm"
    bias: bool = True


def attention(b: Builder, x: Tensor, sizes: AttentionSizes, name: str = "attention", *, memory: Tensor | None = None,
              score_bias: Sequence[Tensor] = (), gate: Tensor | None = None) -> Tensor:
    """Multi-head attention, from the projections to the output projection.

    ``memory``: what is attended to (default: ``x``). ``score_bias``: tensors added to the scores. ``gate``: multiplies
    the result before the output projection.
    """
    width, queries, heads, bias = x.shape[-1], x.shape[-2], sizes.heads, sizes.bias
    size, groups = sizes.head_size or width // heads, sizes.kv_heads or heads
    if memory is None:
        both = linear(b, x, (heads + 2 * groups) * size, f"{name}.qkv", bias=bias, units=groups)
        if sizes.rotary:
            both = pointwise(b, "rotary", f"{name}.rotary", [both], flops=3.0)
        sources, keys = [both], queries
    else:
        sources = [linear(b, x, heads * size, f"{name}.q", bias=bias, units=heads),
                   linear(b, memory, 2 * groups * size, f"{name}.kv", bias=bias, units=groups)]
        keys = memory.shape[-2]
    lead = x.shape[:-2]
    if sizes.fused and not score_bias:
        context = _fused(b, sources, (*lead, queries, heads * size), heads, groups, keys, name)
    else:
        context = _scored(b, sources, (*lead, queries, heads * size), heads, groups, keys, score_bias, name)
    if gate is not None:
        context = pointwise(b, "multiply", f"{name}.gated", [context, gate], keeps="inputs")
    return linear(b, context, width, f"{name}.dense", bias=bias if sizes.out_bias is None else sizes.out_bias,
                  input_units=groups)


def transformer_layer(b: Builder, x: Tensor, sizes: LayerSizes, *, memory: Tensor | None = None,
                      score_bias: Sequence[Tensor] = ()) -> Tensor:
    """A pre-norm layer: attention, attention to ``memory`` where there is one, feed-forward; each with its residual.

    Attention to ``memory`` has neither grouped queries nor rotated positions.
    """
    inner = norm(b, x, "norm1", sizes.norm, bias=sizes.bias)
    x = add(b, attention(b, inner, sizes.attention, score_bias=score_bias), x, "add1")
    if memory is not None:
        inner = norm(b, x, "norm_cross", sizes.norm, bias=sizes.bias)
        cross = replace(sizes.attention, kv_heads=None, out_bias=None, rotary=False)
        x = add(b, attention(b, inner, cross, "cross", memory=memory), x, "add_cross")
    inner = norm(b, x, "norm2", sizes.norm, bias=sizes.bias)
    return add(b, feed_forward(b, inner, sizes.hidden, sizes.activation, bias=sizes.bias), x, "add2")


def _fused(b: Builder, sources: Sequence[Tensor], shape: tuple[int, ...], heads: int, groups: int, keys: int,
           name: str) -> Tensor:
    context = b.tensor(f"{name}.core", shape)
    rows = b.tensor(f"{name}.core.statistics", (*shape[:-2], heads, shape[-2]), "float32")
    flops = 4.0 * math.prod(shape) * keys
    b.add("attention", f"{name}.core", sources, [context], work=Passes(flops, input_flops=2.5 * flops),
          saved=Saved([*sources, context, rows], internal=[rows]),
          splits=_by_head({tensor: len(shape) - 1 for tensor in sources}, context, len(shape) - 1, groups, len(shape)))
    return context


def _scored(b: Builder, sources: Sequence[Tensor], shape: tuple[int, ...], heads: int, groups: int, keys: int,
            score_bias: Sequence[Tensor], name: str) -> Tensor:
    square, at, last = (*shape[:-2], heads, shape[-2], keys), len(shape) - 2, len(shape) - 1
    flops = 2.0 * math.prod(shape) * keys
    scores = b.tensor(f"{name}.score", square)
    b.add("matmul", f"{name}.score", sources, [scores], work=Passes(flops, input_flops=2 * flops), saved=Saved(sources),
          splits=_by_head({tensor: last for tensor in sources}, scores, at, groups, len(shape)))
    probabilities = b.tensor(f"{name}.softmax", square)
    added = {scores: at, **{tensor: len(tensor.shape) - 3 for tensor in score_bias}}
    b.add("softmax", f"{name}.softmax", [scores, *score_bias], [probabilities], work=Passes(5.0 * math.prod(square)),
          saved=Saved([probabilities]), splits=_by_head(added, probabilities, at, heads, len(shape)))
    if b.dropout:
        dropped = b.tensor(f"{name}.dropout", square)
        mask = b.tensor(f"{name}.dropout.mask", square, "bool")
        b.add("dropout", f"{name}.dropout", [probabilities], [dropped], work=Passes(2.0 * math.prod(square)),
              saved=Saved([mask], internal=[mask]),
              splits=_by_head({probabilities: at}, dropped, at, heads, len(shape)))
        probabilities = dropped
    context = b.tensor(f"{name}.context", shape)
    values = sources[-1]
    b.add("matmul", f"{name}.context", [probabilities, values], [context], work=Passes(flops, input_flops=2 * flops),
          saved=Saved([probabilities, values]),
          splits=_by_head({probabilities: at, values: last}, context, last, groups, len(shape)))
    return context


def _by_head(inputs: Mapping[Tensor, int], out: Tensor, axis: int, groups: int, axes: int) -> list[Split]:
    """The splits by head (the axis of each input, and of ``out``) and along the axes before the sequence.

    An input without those axes, such as one bias for the whole batch, stays whole there.
    """
    lead = [Split(("batch", "rows")[i], out.shape[i],
                  {t.name: i for t in inputs if len(t.shape) > 3 - (axes - 3) or t.shape[0] == out.shape[0]
                   if i < len(t.shape) and t.shape[i] == out.shape[i]}, {out.name: i}) for i in range(axes - 2)]
    return [*lead, Split("heads", groups, {t.name: at for t, at in inputs.items()}, {out.name: axis})]
