"""The transformer layer: attention and a feed-forward part on one residual, and where its norms stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from weft.models.graph.operators import Tensor
from weft.models.zoo.lib.attention import AttentionSizes, attention
from weft.models.zoo.lib.blocks import add, feed_forward, norm
from weft.models.zoo.lib.builder import Builder
from weft.models.zoo.lib.experts import ExpertSizes, mixture_of_experts

__all__ = ["LayerSizes", "transformer_layer"]


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """What a transformer layer is like.

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

    def normed(self, b: Builder, x: Tensor, name: str) -> Tensor:
        """``x`` behind a norm of the layer's kind."""
        return norm(b, x, name, self.norm, bias=self.bias if self.norm_bias is None else self.norm_bias)


def transformer_layer(b: Builder, x: Tensor, sizes: LayerSizes, *, memory: Tensor | None = None,
                      score_bias: Sequence[Tensor] = ()) -> Tensor:
    """Attention, attention to ``memory`` where there is one, feed-forward; each with its residual.

    Attention to ``memory`` has neither grouped queries nor rotated positions.
    """
    if sizes.parallel:
        inner = sizes.normed(b, x, "norm1")
        attended = attention(b, inner, sizes.attention, score_bias=score_bias)
        result = _forward(b, inner if sizes.one_norm else sizes.normed(b, x, "norm2"), sizes)
        return add(b, result, add(b, attended, x, "add1"), "add2")
    x = _part(b, x, sizes, "1", lambda inner: attention(b, inner, sizes.attention, score_bias=score_bias))
    if memory is not None:
        cross = replace(sizes.attention, kv_heads=None, out_bias=None, rotary=False)
        x = _part(b, x, sizes, "_cross", lambda inner: attention(b, inner, cross, "cross", memory=memory))
    return _part(b, x, sizes, "2", lambda inner: _forward(b, inner, sizes))


def _part(b: Builder, x: Tensor, sizes: LayerSizes, name: str, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """One part of a layer with its residual and its norms."""
    y = compute(sizes.normed(b, x, f"norm{name}") if sizes.place in ("before", "both") else x)
    if sizes.place in ("output", "both"):
        y = sizes.normed(b, y, f"norm{name}_out")
    x = add(b, y, x, f"add{name}")
    return sizes.normed(b, x, f"norm{name}") if sizes.place == "after" else x


def _forward(b: Builder, x: Tensor, sizes: LayerSizes) -> Tensor:
    if sizes.experts is not None:
        return mixture_of_experts(b, x, sizes.experts, sizes.activation, bias=sizes.bias)
    return feed_forward(b, x, sizes.hidden, sizes.activation, bias=sizes.bias)
