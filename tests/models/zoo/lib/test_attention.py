"""Attention and transformer layers: how sizes reach their operators."""

from __future__ import annotations

from weft.models.graph.operators import OperatorGraph
from weft.models.zoo.lib.attention import AttentionSizes, attention
from weft.models.zoo.lib.builder import Builder
from weft.models.zoo.lib.transformers import LayerSizes, transformer_layer


def graph_of(sizes: AttentionSizes, *, memory: bool = False) -> OperatorGraph:
    b = Builder("one", dropout=False)
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
    b = Builder("one", dropout=False)
    x, memory = b.input("x", (2, 16, 64)), b.input("memory", (2, 8, 64))
    sizes = LayerSizes(AttentionSizes(8, kv_heads=2, out_bias=False, rotary=True), 128)
    graph = b.graph(transformer_layer(b, x, sizes, memory=memory))
    assert "attention.rotary" in graph.by_name and "cross.rotary" not in graph.by_name
    assert graph.by_name["cross.kv"].outputs[0].shape == (2, 8, 128)
    assert [len(graph.by_name[name].parameters) for name in ("attention.dense", "cross.dense")] == [1, 2]
