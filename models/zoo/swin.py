"""Swin transformers as operator graphs (Liu et al., ICCV 2021)."""

from __future__ import annotations

import math

from weft.models.graph.operators import OperatorGraph, Tensor
from weft.models.spec.families import SwinModel
from weft.models.zoo.lib.builder import GraphBuilder, Passes, add, copy, cross_entropy, feed_forward, linear, norm
from weft.models.zoo.lib.convolutions import patches
from weft.models.zoo.lib.embeddings import relative_bias
from weft.models.zoo.lib.transformers import AttentionSizes, attention


def swin_graph(model: SwinModel, batch: int = 1, *, dtype: str = "float16", training: bool = True) -> OperatorGraph:
    """One micro-batch of ``batch`` images: layers ``embedding``, ``stage0.layer0`` ... (a stage's first layer merges
    patches), ``head``. Stochastic depth is not counted: it leaves out whole layers of a sample."""
    b = GraphBuilder(model.family, dtype=dtype, training=training, dropout=False)
    images = b.input("images", (batch, 3, model.image, model.image))
    labels = b.input("labels", (batch,), "int64")
    with b.layer("embedding"):
        x = norm(b, patches(b, images, model.width, model.patch, "patches"), "norm")
    for stage, (depth, heads) in enumerate(zip(model.depths, model.heads, strict=True)):
        for i in range(depth):
            with b.layer(f"stage{stage}.layer{i}"):
                if stage and not i:
                    x = _merge(b, x)
                x = _layer(b, x, model, heads)
    with b.layer("head"):
        x = norm(b, x, "norm")
        y = b.tensor("pooled", (batch, x.shape[2]))
        b.add("mean_pool", "pooled", [x], [y], work=Passes(float(math.prod(x.shape))),
              splits=[b.along("batch", 0, [x], [y])])
        logits = linear(b, y, model.classes, "classes")
        return b.graph(cross_entropy(b, logits, labels) if training else logits)


def _layer(b: GraphBuilder, x: Tensor, model: SwinModel, heads: int) -> Tensor:
    """Attention within windows (every other layer's are shifted, which moves the same bytes), then feed-forward."""
    batch, count, width = x.shape
    area = model.window**2
    bias = relative_bias(b, heads, (area, area), (2 * model.window - 1) ** 2)
    inner = copy(b, norm(b, x, "norm1"), (batch * count // area, area, width), "windows")
    inner = attention(b, inner, AttentionSizes(heads), score_bias=[bias])
    x = add(b, copy(b, inner, x.shape, "unwindowed"), x, "add1")
    return add(b, feed_forward(b, norm(b, x, "norm2"), model.mlp_ratio * width), x, "add2")


def _merge(b: GraphBuilder, x: Tensor) -> Tensor:
    """Four neighbouring patches become one of twice the width."""
    batch, count, width = x.shape
    joined = copy(b, x, (batch, count // 4, 4 * width), "merge")
    return linear(b, norm(b, joined, "merge_norm"), 2 * width, "reduction", bias=False)
