"""FLAVA as an operator graph (Singh et al., CVPR 2022): towers for text and image, a fusion transformer over both."""

from __future__ import annotations

import math

from weft.models.graph.operators import OperatorGraph, Parameter, Tensor, Work
from weft.models.spec.families import FlavaModel
from weft.models.zoo.lib.builder import GraphBuilder, Passes, Saved, concatenation, linear, norm
from weft.models.zoo.lib.convolutions import patches
from weft.models.zoo.lib.embeddings import first, placed
from weft.models.zoo.lib.transformers import AttentionSizes, LayerSizes, transformer_layer


def flava_graph(model: FlavaModel, batch: int = 1, *, dtype: str = "float16", training: bool = True) -> OperatorGraph:
    """One micro-batch of ``batch`` pairs: layers ``text.embedding``, ``text0`` ..., ``image.embedding``, ``image0``
    ..., ``join``, ``fusion0`` ..., ``head``. The image codebook, which makes targets beforehand, is no part."""
    b = GraphBuilder(model.family, dtype=dtype, training=training, dropout=model.dropout)
    width, inner = model.hidden, model.feed_forward or 4 * model.hidden
    tokens = b.input("tokens", (batch, model.sequence), "int64")
    images = b.input("images", (batch, 3, model.image, model.image))
    with b.layer("text.embedding"):
        tables = [b.parameter("words", model.vocabulary, width), b.parameter("positions", model.max_positions, width),
                  b.parameter("types", 2, width)]
        text = norm(b, _looked_up(b, tokens, width, tables), "norm")
    text = _tower(b, text, model, "text", model.text_layers, inner)
    with b.layer("image.embedding"):
        count = (model.image // model.patch) ** 2
        image = patches(b, images, width, model.patch, "patches")
        image = placed(b, image, [b.parameter("class", width), b.parameter("mask", width),
                                  b.parameter("positions", count + 1, width)], extra=1)
    image = _tower(b, image, model, "image", model.image_layers, inner)
    with b.layer("join"):
        text, image = norm(b, text, "text_norm"), norm(b, image, "image_norm")
        contrast = [linear(b, first(b, tower, f"{name}_first"), width, f"{name}_pooler") for name, tower in
                    (("text", text), ("image", image))]
        contrast = [linear(b, x, width, f"{name}_contrast")
                    for name, x in zip(("text", "image"), contrast, strict=True)]
        scale = b.tensor("similarity", (batch, batch))
        b.add("matmul", "similarity", contrast, [scale],
              work=Passes(2.0 * batch * batch * width, input_flops=4.0 * batch * batch * width),
              parameters=[b.parameter("temperature", 1)], saved=Saved(contrast))
        both = [linear(b, tower, width, f"{name}_project") for name, tower in (("image", image), ("text", text))]
        x = concatenation(b, both, 1, "joined", extra=1, parameters=[b.parameter("class", width)])
    x = _tower(b, x, model, "fusion", model.fusion_layers, inner)
    with b.layer("head"):
        x = norm(b, x, "norm")
        return b.graph(linear(b, first(b, x, "first"), width, "pooler"), scale)


def _tower(b: GraphBuilder, x: Tensor, model: FlavaModel, name: str, layers: int, inner: int) -> Tensor:
    for i in range(layers):
        with b.layer(f"{name}{i}"):
            x = transformer_layer(b, x, LayerSizes(AttentionSizes(model.heads), inner))
    return x


def _looked_up(b: GraphBuilder, tokens: Tensor, width: int, tables: list[Parameter]) -> Tensor:
    """Words, positions and types looked up and added."""
    y = b.tensor("tokens", (*tokens.shape, width))
    b.add("embedding", "tokens", [tokens], [y],
          work=Passes(forward=Work(2.0 * math.prod(y.shape), tokens.bytes + 3 * y.bytes, y.bytes),
                      weight_grad=Work(float(math.prod(y.shape)), y.bytes + tokens.bytes,
                                       sum(table.bytes for table in tables) + y.bytes)),
          parameters=tables, saved=Saved([tokens], deferred=[tokens]),
          splits=[b.along("batch", 0, [tokens], [y]), b.along("sequence", 1, [tokens], [y])])
    return y
