"""The GPT family as operator graphs: GPT-2 and GPT-3 (Radford et al. 2019, Brown et al. 2020), GPT-NeoX (Black et al.
2022), LLaMA and Mistral (Touvron et al. 2023, Jiang et al. 2023), and mixtures of experts."""

from __future__ import annotations

from weft.models.graph.operators import OperatorGraph, Tensor
from weft.models.spec.families import GptModel, MoeModel
from weft.models.zoo.lib.attention import AttentionSizes, LayerSizes, attention, transformer_layer
from weft.models.zoo.lib.blocks import add, cross_entropy, feed_forward, linear, norm
from weft.models.zoo.lib.builder import Builder
from weft.models.zoo.lib.embeddings import embedding
from weft.models.zoo.lib.experts import mixture_of_experts

__all__ = ["gpt_graph"]


def gpt_graph(model: GptModel, batch: int = 1, *, dtype: str = "float16", training: bool = True) -> OperatorGraph:
    """One micro-batch of ``batch`` sequences: layers ``embedding``, ``layer0`` ... and ``head``."""
    b = Builder(model.family, dtype=dtype, training=training, dropout=model.dropout)
    tokens = b.input("tokens", (batch, model.sequence), "int64")
    labels = b.input("labels", (batch, model.sequence), "int64")
    learned = model.positions == "learned"
    with b.layer("embedding"):
        table = b.parameter("tokens.weight", model.vocabulary, model.hidden)
        x = embedding(b, tokens, model.vocabulary, model.hidden, "tokens", weight=table, dropout=True,
                      positions=(model.max_positions or model.sequence) if learned else 0)
    for i in range(model.layers):
        with b.layer(f"layer{i}"):
            x = _layer(b, x, model, i)
    with b.layer("head"):
        x = norm(b, x, "norm", model.norm, bias=model.bias)
        logits = linear(b, x, model.vocabulary, "logits", bias=False, weight=table if model.tied else None)
        if not training:
            return b.graph(logits)
        return b.graph(cross_entropy(b, logits, labels))


def _layer(b: Builder, x: Tensor, model: GptModel, index: int) -> Tensor:
    inner = model.feed_forward or 4 * model.hidden
    sizes = AttentionSizes(model.heads, model.head_size, model.kv_heads,
                           model.bias if model.attention_bias is None else model.attention_bias, model.bias,
                           fused=model.attention == "fused", rotary=model.positions == "rotary")
    has_experts = isinstance(model, MoeModel) and (index + 1) % model.every == 0
    if not has_experts and not model.parallel:
        return transformer_layer(b, x, LayerSizes(sizes, inner, model.activation, model.norm, model.bias))
    attended = attention(b, norm(b, x, "norm1", model.norm, bias=model.bias), sizes)
    if model.parallel:
        beside = norm(b, x, "norm2", model.norm, bias=model.bias)
        result = feed_forward(b, beside, inner, model.activation, bias=model.bias)
        return add(b, result, add(b, attended, x, "add1"), "add2")
    assert isinstance(model, MoeModel)
    x = add(b, attended, x, "add1")
    result = mixture_of_experts(b, norm(b, x, "norm2", model.norm, bias=model.bias), model.experts, model.active, inner,
                                model.activation, bias=model.bias, capacity_factor=model.capacity_factor)
    return add(b, result, x, "add2")
