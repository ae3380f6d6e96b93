"""Transformer layers: where norms stand, what windows and latent keys cost, and experts beside a shared one."""

from __future__ import annotations

import pytest

from weft.models.graph.operators import OperatorGraph
from weft.models.zoo.lib.builder import GraphBuilder
from weft.models.zoo.lib.transformers import AttentionSizes, LatentSizes, LayerSizes, attention, transformer_layer


def layer(sizes: LayerSizes, hidden: int = 64) -> OperatorGraph:
    b = GraphBuilder("one", dropout=False)
    return b.graph(transformer_layer(b, b.input("x", (2, 16, hidden)), sizes))


def test_parts_beside_each_other_may_share_their_norm() -> None:
    two, one = (layer(LayerSizes(AttentionSizes(4), 128, parallel=True, one_norm=one)) for one in (False, True))
    assert "norm2" in two.by_name and "norm2" not in one.by_name
    assert one.by_name["mlp.up"].inputs == one.by_name["attention.qkv"].inputs == ("norm1",)


@pytest.mark.parametrize("window", [None, 4, 16, 20])
def test_fused_causal_attention_computes_what_each_query_sees(window: int | None) -> None:
    """Counted one by one, of 16 tokens; kernel by kernel all is computed and masked."""
    whole, seen, unfused = (layer(LayerSizes(AttentionSizes(4, fused=fused, causal=causal, window=window), 128))
                            for fused, causal in ((True, False), (True, True), (False, True)))
    pairs = sum(min(i + 1, window or 16) for i in range(16))
    core = seen.by_name["attention.core"]
    assert core.forward.flops == 2 * 2.0 * 2 * pairs * 64 == core.input_grad.flops / 2.5  # type: ignore[union-attr]
    assert core.forward.flops < whole.by_name["attention.core"].forward.flops
    assert unfused.by_name["attention.score"].forward.flops == 2.0 * 2 * 16 * 16 * 64


def test_latent_attention_has_the_products_and_parameters_of_its_sizes() -> None:
    latent = LatentSizes(query_rank=24, key_rank=16, plain=8, rotary=4, value=6)
    sizes = AttentionSizes(4, bias=False, fused=True, latent=latent)
    graph = layer(LayerSizes(sizes, 128, "swiglu", "rms_norm", bias=False))
    own = sum(p.count for name, p in graph.parameters.items() if name.startswith("attention."))
    assert own == 64 * 24 + 24 + 24 * 4 * 12 + 64 * (16 + 4) + 16 + 16 * 4 * (8 + 6) + 4 * 6 * 64
    core = graph.by_name["attention.core"]
    assert core.forward.flops == 2 * 2 * 16 * 16 * 4 * (8 + 4) + 2 * 2 * 16 * 16 * 4 * 6
    assert core.outputs[0].shape == (2, 16, 4 * 6)


@pytest.mark.parametrize(("kind", "scales"), [("head", 2 * 16), ("heads", (4 + 2) * 16), ("width", (4 + 2) * 16)])
def test_norms_of_queries_and_keys(kind: str, scales: int) -> None:
    sizes = AttentionSizes(4, kv_heads=2, qk_norm=kind)  # type: ignore[arg-type]
    found = layer(LayerSizes(sizes, 128)).by_name["attention.qk_norm"]
    assert sum(p.count for p in found.parameters) == scales
    dimensions = {split.dimension: split for split in found.splits}
    assert ("heads" in dimensions) == (kind != "width")
    assert kind == "width" or bool(dimensions["heads"].parameters) == (kind == "heads")


def test_keys_may_be_without_biases_and_scores_have_sinks() -> None:
    graph = layer(LayerSizes(AttentionSizes(4, kv_heads=2, key_bias=False, sinks=True, fused=True), 128))
    assert graph.parameters["attention.qkv.bias"].count == (4 + 2) * 16
    core = graph.by_name["attention.core"]
    assert [p.count for p in core.parameters] == [4] and core.weight_grad is not None
    assert next(s for s in core.splits if s.dimension == "heads").parameters == {"attention.sinks"}
    unfused = layer(LayerSizes(AttentionSizes(4, sinks=True), 128))
    assert [p.count for p in unfused.by_name["attention.softmax"].parameters] == [4]


def graph_of(sizes: AttentionSizes, *, memory: bool = False) -> OperatorGraph:
    b = GraphBuilder("one", dropout=False)
    x, other = b.input("x", (2, 16, 64)), b.input("other", (2, 8, 64))
    return b.graph(attention(b, x, sizes, memory=other if memory else None))


def test_a_fused_kernel_keeps_no_scores() -> None:
    names = set(graph_of(AttentionSizes(4, fused=True)).by_name)
    assert "attention.core" in names and "attention.score" not in names
    scores = graph_of(AttentionSizes(4), memory=True).by_name["attention.score"]
    assert scores.outputs[0].shape == (2, 4, 16, 8)
