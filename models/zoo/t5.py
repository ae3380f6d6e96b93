"""T5 and mT5 as operator graphs (Raffel et al., 2020; Xue et al., 2021): encoder, decoder, one embedding for both.

Relative positions are a small table that only the first layer of each side learns; the bias it makes is read by all
layers of that side, so it travels with the hidden state. The encoder's output is read by every layer of the decoder.
"""

from __future__ import annotations

from weft.models.graph.operators import OperatorGraph, Tensor
from weft.models.spec.families import T5Model
from weft.models.zoo.lib.attention import AttentionSizes, LayerSizes, transformer_layer
from weft.models.zoo.lib.blocks import cross_entropy, linear, norm
from weft.models.zoo.lib.builder import Builder
from weft.models.zoo.lib.embeddings import embedding, relative_bias

__all__ = ["t5_graph"]


def t5_graph(model: T5Model, batch: int = 1, *, dtype: str = "float16", training: bool = True) -> OperatorGraph:
    """One micro-batch of ``batch`` pairs: layers ``embedding``, ``encoder0`` ..., ``bridge`` (the encoder's last norm
    and the embedding of the targets), ``decoder0`` ..., ``head``."""
    b = Builder(model.family, dtype=dtype, training=training, dropout=model.dropout)
    target = model.target or model.sequence
    tokens = b.input("tokens", (batch, model.sequence), "int64")
    targets = b.input("targets", (batch, target), "int64")
    labels = b.input("labels", (batch, target), "int64")
    relative = model.positions == "relative"
    with b.layer("embedding"):
        table = b.parameter("tokens.weight", model.vocabulary, model.hidden)
        positions = 0 if relative else b.parameter("positions", max(model.sequence, target), model.hidden)
        x = embedding(b, tokens, model.vocabulary, model.hidden, "tokens", weight=table, positions=positions,
                      dropout=True)
    encoded = _side(b, x, model, "encoder", model.encoder_layers, None)
    with b.layer("bridge"):
        encoded = norm(b, encoded, "norm", model.norm, bias=model.bias)
        x = embedding(b, targets, model.vocabulary, model.hidden, "tokens", weight=table, positions=positions,
                      dropout=True)
    x = _side(b, x, model, "decoder", model.decoder_layers, encoded)
    with b.layer("head"):
        x = norm(b, x, "norm", model.norm, bias=model.bias)
        logits = linear(b, x, model.vocabulary, "logits", bias=False, weight=table if model.tied else None)
        if not training:
            return b.graph(logits)
        return b.graph(cross_entropy(b, logits, labels))


def _side(b: Builder, x: Tensor, model: T5Model, side: str, layers: int, memory: Tensor | None) -> Tensor:
    bias: list[Tensor] = []
    sizes = LayerSizes(AttentionSizes(model.heads, model.head_size, bias=model.bias), model.feed_forward,
                       model.activation, model.norm, model.bias)
    for i in range(layers):
        with b.layer(f"{side}{i}"):
            if i == 0 and model.positions == "relative":
                bias = [relative_bias(b, model.heads, (x.shape[1], x.shape[1]), model.buckets)]
            x = transformer_layer(b, x, sizes, memory=memory, score_bias=bias)
    return x
