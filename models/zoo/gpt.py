"""Decoders as operator graphs: GPT-2 and GPT-3 (Radford et al. 2019, Brown et al. 2020), GPT-NeoX (Black et al. 2022),
LLaMA and Mistral (Touvron et al. 2023, Jiang et al. 2023) and their kin, and mixtures of experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.models.graph.operators import OperatorGraph, Parameter, Tensor
from weft.models.spec.families import GptModel, MoeModel
from weft.models.spec.transformers import TransformerModel
from weft.models.zoo.lib.builder import GraphBuilder, concatenation, cross_entropy, linear
from weft.models.zoo.lib.embeddings import embedding
from weft.models.zoo.lib.experts import ExpertSizes
from weft.models.zoo.lib.transformers import AttentionSizes, LatentSizes, LayerSizes, transformer_layer


@dataclass(frozen=True, slots=True)
class Share:
    """One device's share of a decoder: one of ``context`` equal parts of every sequence, one of ``experts`` groups of
    experts, and the layers in ``layers`` (``None``: all)."""

    context: int = 1
    experts: int = 1
    layers: Sequence[int] | None = None


_ALL = Share()


def gpt_graph(model: GptModel, batch: int = 1, *, dtype: str = "float16", training: bool = True,
              share: Share = _ALL) -> OperatorGraph:
    """One micro-batch of ``batch`` sequences: layers ``embedding``, ``layer0`` ..., ``predict0`` ... where more tokens
    are predicted, and ``head``. ``share``: the device's share of it."""
    b = GraphBuilder(model.family, dtype=dtype, training=training, dropout=model.dropout)
    tokens = b.input("tokens", (batch, model.sequence // share.context), "int64")
    labels = b.input("labels", (batch, model.sequence // share.context), "int64")
    width, ends = model.embedding_width or model.hidden, layer_sizes(model, 0)
    with b.layer("embedding"):
        table = b.parameter("tokens.weight", model.vocabulary, width)
        x = embedding(b, tokens, table, dropout=True,
                      positions=(model.max_positions or model.sequence)
                      if model.positions == "learned" and width == model.hidden else 0)
        if width != model.hidden:
            x = _with_positions(b, linear(b, x, model.hidden, "widened", bias=False), model)
        if model.embedding_norm:
            x = ends.normed(b, x, "norm")
    for i in range(model.layers) if share.layers is None else share.layers:
        with b.layer(f"layer{i}"):
            x = transformer_layer(b, x, layer_sizes(model, i, share))
    later: list[Tensor] = []
    for i in range(model.predict):
        with b.layer(f"predict{i}"):
            later.append(_predicted(b, later[-1] if later else x, tokens, table, model, share))
    with b.layer("head"):
        x = ends.normed(b, x, "norm") if model.final_norm else x
        if width != model.hidden:
            x = linear(b, x, width, "narrowed", bias=False)
        weight = table if model.tied else b.parameter("logits.weight", model.vocabulary, width)
        logits = [linear(b, y, model.vocabulary, name, bias=model.head_bias, weight=weight) for name, y in (
            ("logits", x), *((f"logits_predict{i}", ends.normed(b, y, f"norm_predict{i}"))
                             for i, y in enumerate(later)))]
        if not training:
            return b.graph(*logits)
        return b.graph(*(cross_entropy(b, y, labels, f"loss{f'_predict{i - 1}' if i else ''}")
                         for i, y in enumerate(logits)))


def layer_sizes(model: TransformerModel, index: int, share: Share = _ALL) -> LayerSizes:
    """The sizes of layer ``index`` of ``model``, or of one device's ``share`` of it."""
    own = model.windowed is None or model.windowed[index % len(model.windowed)]
    sizes = AttentionSizes(
        model.heads, model.head_size, model.kv_heads,
        model.bias if model.attention_bias is None else model.attention_bias,
        model.bias if model.out_bias is None else model.out_bias, fused=model.attention == "fused",
        causal=True, rotary=model.positions == "rotary", window=model.window if own else None, qk_norm=model.qk_norm,
        norm="rms_norm" if model.norm == "rms_norm" else "layer_norm", sinks=model.sinks,
        latent=None if model.latent is None else LatentSizes(**model.latent.model_dump()), parts=share.context)
    inner = model.feed_forward or 4 * model.hidden
    return LayerSizes(sizes, inner, model.activation, model.norm,
                      model.bias if model.mlp_bias is None else model.mlp_bias,
                      model.bias if model.norm_bias is None else model.norm_bias, model.norm_place,
                      model.parallel, model.one_norm, _experts(model, index, inner, share))


def _experts(model: TransformerModel, index: int, inner: int, share: Share) -> ExpertSizes | None:
    if not isinstance(model, MoeModel) or (index + 1) % model.every or index < model.dense_first:
        return None
    return ExpertSizes(model.experts, model.density or model.active, model.expert_feed_forward or inner,
                       model.capacity_factor, model.shared, model.shared_gate, model.router_bias, share.experts)


def _with_positions(b: GraphBuilder, x: Tensor, model: GptModel) -> Tensor:
    """Learned positions added to what a narrow embedding was mapped to."""
    if model.positions != "learned":
        return x
    y = b.tensor("placed", x.shape)
    b.add("add", "placed", [x], [y], parameters=[
        b.parameter("tokens.positions", model.max_positions or model.sequence, model.hidden)],
        splits=[b.along("batch", 0, [x], [y])])
    return y


def _predicted(b: GraphBuilder, x: Tensor, tokens: Tensor, table: Parameter, model: GptModel, share: Share) -> Tensor:
    """The hidden states that predict one token more: those of ``x`` and of the tokens behind, joined, through one
    layer (DeepSeek-V3, 2024, section 2.2)."""
    sizes = layer_sizes(model, model.layers - 1, share)
    beside = embedding(b, tokens, table)
    both = concatenation(b, [sizes.normed(b, x, "norm_hidden"), sizes.normed(b, beside, "norm_tokens")], 2, "joined")
    return transformer_layer(b, linear(b, both, model.hidden, "narrowed", bias=False), sizes)
