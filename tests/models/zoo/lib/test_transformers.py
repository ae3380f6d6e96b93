"""Transformer layers: where norms stand, what windows and latent keys cost, and experts beside a shared one."""

from __future__ import annotations

import math

import pytest

from weft.models.graph.operators import OperatorGraph
from weft.models.zoo.lib.builder import GraphBuilder
from weft.models.zoo.lib.experts import ExpertSizes
from weft.models.zoo.lib.transformers import AttentionSizes, LatentSizes, LayerSizes, attention, transformer_layer


def layer(sizes: LayerSizes, hidden: int = 64) -> OperatorGraph:
    b = GraphBuilder("one", dropout=False)
    return b.graph(transformer_layer(b, b.input("x", (2, 16, hidden)), sizes))


@pytest.mark.parametrize(("place", "order"), [
    ("before", ["norm1", "attention.dense", "add1", "norm2", "mlp.down", "add2"]),
    ("after", ["attention.dense", "add1", "norm1", "mlp.down", "add2", "norm2"]),
    ("output", ["attention.dense", "norm1_out", "add1", "mlp.down", "norm2_out", "add2"]),
    ("both", ["norm1", "attention.dense", "norm1_out", "add1", "norm2", "mlp.down", "norm2_out", "add2"])])
def test_norms_stand_where_the_model_has_them(place: str, order: list[str]) -> None:
    graph = layer(LayerSizes(AttentionSizes(4), 128, place=place))  # type: ignore[arg-type]
    assert [name for name in graph.order if name in order] == order
    norms = [name for name in order if name.startswith("norm")]
    assert sum(o.kind == "layer_norm" for o in graph.operators) == len(norms)


def test_parts_beside_each_other_may_share_their_norm() -> None:
    two, one = (layer(LayerSizes(AttentionSizes(4), 128, parallel=True, one_norm=one)) for one in (False, True))
    assert "norm2" in two.by_name and "norm2" not in one.by_name
    assert one.by_name["mlp.up"].inputs == one.by_name["attention.qkv"].inputs == ("norm1",)


def test_a_window_saves_what_lies_outside_it() -> None:
    whole, seen = (layer(LayerSizes(AttentionSizes(4, fused=True, window=window), 128)).by_name["attention.core"]
                   for window in (None, 4))
    assert seen.forward.flops == whole.forward.flops * 4 / 16 and seen.outputs == whole.outputs


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


def test_a_shared_expert_is_a_feed_forward_part_with_its_gate() -> None:
    experts = ExpertSizes(8, 2, 32, shared=48, shared_gate=True, router_bias=True)
    graph = layer(LayerSizes(AttentionSizes(4), 128, "swiglu", bias=False, experts=experts))
    own = {name: p.count for name, p in graph.parameters.items() if name.startswith("experts.")}
    assert own == {"experts.router.weight": 8 * 64, "experts.router.bias": 8,
                   "experts.up.weight": 8 * 64 * 64, "experts.down.weight": 8 * 32 * 64,
                   "experts.shared.up.weight": 96 * 64, "experts.shared.down.weight": 48 * 64,
                   "experts.shared_gate.weight": 64}
    up = graph.by_name["experts.up"]
    assert up.outputs[0].shape == (8, math.ceil(32 * 2 / 8), 64)


def graph_of(sizes: AttentionSizes, *, memory: bool = False) -> OperatorGraph:
    b = GraphBuilder("one", dropout=False)
    x, other = b.input("x", (2, 16, 64)), b.input("other", (2, 8, 64))
    return b.graph(attention(b, x, sizes, memory=other if memory else None))


def test_grouped_queries_share_keys_and_values() -> None:
    qkv = graph_of(AttentionSizes(8, kv_heads=2)).by_name["attention.qkv"]
    assert qkv.outputs[0].shape == (2, 16, (8 + 2 * 2) * 8) and len(qkv.parameters) == 2
    assert {split.dimension: split.size for split in qkv.splits}["output"] == 2


def test_biases_of_the_projections_and_of_the_last_one_are_apart() -> None:
    graph = graph_of(AttentionSizes(4, head_size=32, bias=False, out_bias=True))
    assert [len(graph.by_name[name].parameters) for name in ("attention.qkv", "attention.dense")] == [1, 2]
    assert graph.by_name["attention.dense"].parameters[0].shape == (64, 128)


def test_a_fused_kernel_keeps_no_scores() -> None:
    names = set(graph_of(AttentionSizes(4, fused=True)).by_name)
    assert "attention.core" in names and "attention.score" not in names
    scores = graph_of(AttentionSizes(4), memory=True).by_name["attention.score"]
    assert scores.outputs[0].shape == (2, 4, 16, 8)


def test_attention_to_another_tensor_has_neither_groups_nor_rotation() -> None:
    b = GraphBuilder("one", dropout=False)
    x, memory = b.input("x", (2, 16, 64)), b.input("memory", (2, 8, 64))
    sizes = LayerSizes(AttentionSizes(8, kv_heads=2, out_bias=False, rotary=True), 128)
    graph = b.graph(transformer_layer(b, x, sizes, memory=memory))
    assert "attention.rotary" in graph.by_name and "cross.rotary" not in graph.by_name
    assert graph.by_name["cross.kv"].outputs[0].shape == (2, 8, 128)
    assert [len(graph.by_name[name].parameters) for name in ("attention.dense", "cross.dense")] == [1, 2]
