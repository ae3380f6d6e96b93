"""Encoders as operator graphs: BERT (Devlin et al., 2019), ViT (Dosovitskiy et al., 2021), and CLIP's two towers
(Radford et al., 2021)."""

from __future__ import annotations

from weft.models.graph.operators import OperatorGraph, Parameter, Tensor
from weft.models.spec.families import ClipModel, EncoderModel
from weft.models.zoo.gpt import layer_sizes
from weft.models.zoo.lib.builder import GraphBuilder, Passes, Saved, activation, cross_entropy, linear
from weft.models.zoo.lib.convolutions import patches
from weft.models.zoo.lib.embeddings import embedding, first, placed
from weft.models.zoo.lib.transformers import transformer_layer


def encoder_graph(model: EncoderModel, batch: int = 1, *, dtype: str = "float16",
                  training: bool = True) -> OperatorGraph:
    """One micro-batch of ``batch`` texts or images: layers ``embedding``, ``layer0`` ... and ``head``."""
    b = GraphBuilder(model.family, dtype=dtype, training=training, dropout=model.dropout)
    labels = b.input("labels", (batch,) if model.head == "classes" or model.sequence is None else
                     (batch, model.sequence), "int64")
    table, x = _tower(b, model, batch, "")
    with b.layer("head"):
        if model.final_norm:
            x = layer_sizes(model, 0).normed(b, x, "norm")
        if model.head == "none":
            return b.graph(x)
        if model.head == "classes":
            logits = linear(b, first(b, x, "first"), model.classes, "classes")
        else:
            assert model.vocabulary is not None
            x = activation(b, linear(b, x, model.hidden, "transform"), "gelu", "transform.gelu")
            x = layer_sizes(model, 0).normed(b, x, "transform_norm")
            logits = linear(b, x, model.vocabulary, "logits", weight=table)
        return b.graph(cross_entropy(b, logits, labels) if training else logits)


def clip_graph(model: ClipModel, batch: int = 1, *, dtype: str = "float16", training: bool = True) -> OperatorGraph:
    """One micro-batch of ``batch`` pairs: layers ``text.embedding``, ``text.layer0`` ..., ``image.embedding``,
    ``image.layer0`` ..., ``head``."""
    b = GraphBuilder(model.family, dtype=dtype, training=training, dropout=False)
    ends = {name: _tower(b, tower, batch, f"{name}.")[1] for name, tower in
            (("text", model.text), ("image", model.image))}
    with b.layer("head"):
        contrast = []
        for name, tower in (("text", model.text), ("image", model.image)):
            x = layer_sizes(tower, 0).normed(b, ends[name], f"{name}_norm") if tower.final_norm else ends[name]
            contrast.append(linear(b, first(b, x, f"{name}_first"), model.projection, f"{name}_project", bias=False))
        scale = b.tensor("similarity", (batch, batch))
        flops = 2.0 * batch * batch * model.projection
        b.add("matmul", "similarity", contrast, [scale], work=Passes(flops, input_flops=2 * flops),
              parameters=[b.parameter("temperature", 1)], saved=Saved(contrast))
        return b.graph(scale)


def _tower(b: GraphBuilder, model: EncoderModel, batch: int, lead: str) -> tuple[Parameter | None, Tensor]:
    """The table of tokens, and the last layer's output; the names of layers begin with ``lead``."""
    table = None
    with b.layer(f"{lead}embedding"):
        if model.vocabulary is not None and model.sequence is not None:
            table = b.parameter("tokens.weight", model.vocabulary, model.hidden)
            tokens = b.input(f"{lead}tokens", (batch, model.sequence), "int64")
            x = embedding(b, tokens, table, types=model.types,
                          positions=(model.max_positions or model.sequence) if model.positions == "learned" else 0)
        else:
            x = _patched(b, model, batch, lead)
        if model.embedding_norm:
            x = layer_sizes(model, 0).normed(b, x, "norm")
    for i in range(model.layers):
        with b.layer(f"{lead}layer{i}"):
            x = transformer_layer(b, x, layer_sizes(model, i))
    return table, x


def _patched(b: GraphBuilder, model: EncoderModel, batch: int, lead: str) -> Tensor:
    """Patches of an image behind one token of the class, with their positions."""
    assert model.image is not None
    images = b.input(f"{lead}images", (batch, model.channels, model.image, model.image))
    x = patches(b, images, model.hidden, model.patch, "patches", bias=model.patch_bias)
    tables = [b.parameter("class", model.hidden)]
    if model.positions == "learned":
        tables.append(b.parameter("positions", x.shape[1] + 1, model.hidden))
    return placed(b, x, tables, extra=1)
