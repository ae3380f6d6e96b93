"""Encoders with decoders as operator graphs: T5 and mT5 (Raffel et al., 2020; Xue et al., 2021), BART (Lewis et al.,
2020), Whisper (Radford et al., 2023).

Relative positions are a small table that only the first layer of each side learns; the bias it makes is read by all
layers of that side, so it travels with the hidden state. The encoder's output is read by every layer of the decoder.
"""

from __future__ import annotations

from weft.models.graph.operators import OperatorGraph, Parameter, Tensor
from weft.models.spec.families import T5Model
from weft.models.zoo.lib.builder import GraphBuilder, activation, cross_entropy, linear, pointwise
from weft.models.zoo.lib.convolutions import frames
from weft.models.zoo.lib.embeddings import embedding, relative_bias
from weft.models.zoo.lib.transformers import AttentionSizes, LayerSizes, transformer_layer


def t5_graph(model: T5Model, batch: int = 1, *, dtype: str = "float16", training: bool = True) -> OperatorGraph:
    """One micro-batch of ``batch`` pairs: layers ``embedding``, ``encoder0`` ..., ``bridge`` (the encoder's last norm
    and the embedding of the targets), ``decoder0`` ..., ``head``."""
    b = GraphBuilder(model.family, dtype=dtype, training=training, dropout=model.dropout)
    target, sizes = model.target or model.sequence, _sizes(model)
    tokens = b.input("frames", (batch, 2 * model.sequence, model.mels)) if model.mels else b.input(
        "tokens", (batch, model.sequence), "int64")
    targets = b.input("targets", (batch, target), "int64")
    labels = b.input("labels", (batch, target), "int64")
    with b.layer("embedding"):
        table = b.parameter("tokens.weight", model.vocabulary, model.hidden)
        rows = model.max_positions or max(model.sequence, 0 if model.positions == "apart" else target)
        places: int | Parameter = 0 if model.positions == "relative" else b.parameter("positions", rows, model.hidden)
        x = _heard(b, tokens, model) if model.mels else _embedded(b, tokens, model, table, places)
        if model.embedding_norm:
            x = sizes.normed(b, x, "norm")
    encoded = _side(b, x, model, "encoder", model.encoder_layers, None)
    with b.layer("bridge"):
        if model.final_norm:
            encoded = sizes.normed(b, encoded, "norm")
        if model.positions == "apart":
            places = b.parameter("positions", model.max_target or target, model.hidden)
        x = _embedded(b, targets, model, table, places)
        if model.embedding_norm:
            x = sizes.normed(b, x, "norm_targets")
    x = _side(b, x, model, "decoder", model.decoder_layers, encoded)
    with b.layer("head"):
        if model.final_norm:
            x = sizes.normed(b, x, "norm")
        logits = linear(b, x, model.vocabulary, "logits", bias=False, weight=table if model.tied else None)
        if not training:
            return b.graph(logits)
        return b.graph(cross_entropy(b, logits, labels))


def _embedded(b: GraphBuilder, tokens: Tensor, model: T5Model, table: Parameter, places: int | Parameter) -> Tensor:
    return embedding(b, tokens, table, positions=places, dropout=True)


def _heard(b: GraphBuilder, x: Tensor, model: T5Model) -> Tensor:
    """Frames of a spectrogram as tokens, by two convolutions; their positions are added and not trained."""
    x = activation(b, frames(b, x, model.hidden, 3, "conv1"), "gelu", "conv1.gelu")
    x = activation(b, frames(b, x, model.hidden, 3, "conv2", stride=2), "gelu", "conv2.gelu")
    return pointwise(b, "add", "placed", [x])


def _sizes(model: T5Model, *, causal: bool = False) -> LayerSizes:
    attention = AttentionSizes(model.heads, model.head_size, bias=model.bias, key_bias=model.key_bias,
                               fused=model.attention == "fused", causal=causal)
    return LayerSizes(attention, model.feed_forward, model.activation, model.norm, model.bias, place=model.norm_place)


def _side(b: GraphBuilder, x: Tensor, model: T5Model, side: str, layers: int, memory: Tensor | None) -> Tensor:
    bias: list[Tensor] = []
    for i in range(layers):
        with b.layer(f"{side}{i}"):
            if model.positions == "relative" and (i == 0 or model.every_bias):
                bias = [relative_bias(b, model.heads, (x.shape[1], x.shape[1]), model.buckets)]
            x = transformer_layer(b, x, _sizes(model, causal=side == "decoder"), memory=memory, score_bias=bias)
    return x
