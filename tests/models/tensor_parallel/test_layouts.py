"""Layouts and the exchanges between them, against numpy: what devices compute, put together, is what one computes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.oracles.exchanges import exchange_faults
from weft.models import DEVICES, model_graph
from weft.models.graph.operators import Layout, Operator, OperatorError, OperatorGraph, Split
from weft.models.layers.collectives import collective_time
from weft.models.spec.base import Section
from weft.models.spec.families import GptModel
from weft.models.tensor_parallel.layouts import TensorNeed, exchange, gradient_needed, step
from weft.models.tensor_parallel.part_times import PartTimes
from weft.models.tensor_parallel.shard import Sharded, shard
from weft.models.times.roofline import Roofline
from weft.models.zoo.lib.builder import GraphBuilder, linear
from weft.models.zoo.lib.embeddings import embedding

GPT = GptModel(family="gpt", layers=2, hidden=64, heads=4, vocabulary=96, sequence=16)


Array = NDArray[np.float64]
Shards = list[Array]


def laid_out(whole: Array, layout: Layout, devices: int, rng: np.random.Generator) -> Shards:
    """``whole`` as it lies on the devices; partial: random terms that add up to it."""
    if isinstance(layout, int):
        return list(np.split(whole, devices, axis=layout))
    if layout == "whole":
        return [whole] * devices
    terms = [rng.normal(size=whole.shape) for _ in range(devices - 1)]
    return [*terms, whole - sum(terms)]


def happen(kind: str, shards: Shards, before: Layout, after: Layout) -> Shards:
    """What a collective leaves on each device, from its meaning."""
    devices = len(shards)
    if kind == "none":
        return shards
    if kind == "slice":
        assert isinstance(after, int)
        return [np.split(shards[d], devices, axis=after)[d] for d in range(devices)]
    if kind == "all_reduce":
        return [np.sum(shards, axis=0)] * devices
    if kind == "reduce_scatter":
        assert isinstance(after, int)
        return list(np.split(np.sum(shards, axis=0), devices, axis=after))
    assert isinstance(before, int)
    if kind == "all_gather":
        return [np.concatenate(shards, axis=before)] * devices
    assert kind == "all_to_all" and isinstance(after, int)
    return [np.concatenate([np.split(shard, devices, axis=after)[d] for shard in shards], axis=before)
            for d in range(devices)]


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("before, after", list(itertools.product(("whole", "partial", 0, 1), ("whole", 0, 1))))
def test_a_step_makes_the_layout_that_is_needed(before: Layout, after: Layout, devices: int) -> None:
    rng = np.random.default_rng(1)
    whole = rng.normal(size=(4, 8))
    found = happen(step(before, after), laid_out(whole, before, devices, rng), before, after)
    for shard_, wanted in zip(found, laid_out(whole, after, devices, rng), strict=True):
        np.testing.assert_allclose(shard_, wanted)


def test_nothing_makes_terms_of_a_sum() -> None:
    with pytest.raises(OperatorError, match="no step makes terms"):
        step("whole", "partial")


def graph_of_one(kind: str) -> tuple[OperatorGraph, Operator]:
    """A linear layer or an embedding, with one before it so that gradients flow."""
    b = GraphBuilder("one", dtype="float64")
    ids = b.input("ids", (2, 4), "int64")
    x = embedding(b, ids, b.parameter("tokens.weight", 8, 8))
    y = linear(b, x, 16, "linear") if kind == "linear" else x
    graph = b.graph(y)
    return graph, graph.by_name["linear" if kind == "linear" else "tokens"]


@pytest.mark.parametrize("dimension, devices",
                         [("batch", 2), *itertools.product(("sequence", "output", "input"), (2, 4))])
def test_a_linear_layer_in_parts_is_the_linear_layer(dimension: str, devices: int) -> None:
    """Forward and gradient of the input, for every layout in which the input may have been made."""
    _, operator = graph_of_one("linear")
    split = next(s for s in operator.splits if s.dimension == dimension)
    rng = np.random.default_rng(2)
    x, w, dy = rng.normal(size=(2, 4, 8)), rng.normal(size=(16, 8)), rng.normal(size=(2, 4, 16))
    need = TensorNeed(split.inputs.get("tokens", "whole"), divided=True)
    made: Layout = split.outputs.get("linear", "whole")
    weights = {"output": np.split(w, devices, axis=0), "input": np.split(w, devices, axis=1)}.get(
        dimension, [w] * devices)
    for produced in ("whole", "partial", 2):
        found = exchange(produced, need, 64, devices, gradient=True)
        there = happen(found.forward, laid_out(x, produced, devices, rng), produced, need.layout)
        parts = [part @ weight.T for part, weight in zip(there, weights, strict=True)]
        after = exchange(made, TensorNeed("whole", divided=False), 128, devices, gradient=True)
        whole = happen(after.forward, parts, made, "whole")
        for device in range(devices):
            np.testing.assert_allclose(whole[device], x @ w.T)
        # the gradient of the output comes whole, and is brought to how the output lies
        gradients = happen(after.backward, laid_out(dy, "whole", devices, rng), "whole", gradient_needed(made))
        back = [gradient @ weight for gradient, weight in zip(gradients, weights, strict=True)]
        returned = happen(found.backward, back, need.gradient, gradient_needed(produced))
        for shard_, wanted in zip(returned, laid_out(dy @ w, gradient_needed(produced), devices, rng), strict=True):
            np.testing.assert_allclose(shard_, wanted)


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("dimension", ["vocabulary", "hidden"])
def test_an_embedding_in_parts_is_the_embedding(dimension: str, devices: int) -> None:
    _, operator = graph_of_one("embedding")
    split = next(s for s in operator.splits if s.dimension == dimension)
    rng = np.random.default_rng(3)
    ids, table = rng.integers(0, 8, size=(2, 4)), rng.normal(size=(8, 8))
    rows = 8 // devices
    parts = [np.where((ids // rows == d)[..., None], table[ids], 0.0) for d in range(devices)]
    if dimension == "hidden":
        parts = [part[ids] for part in np.split(table, devices, axis=1)]
    made = split.outputs["tokens"]
    for whole in happen(step(made, "whole"), parts, made, "whole"):
        np.testing.assert_allclose(whole, table[ids])
    assert step(made, "whole") == {"vocabulary": "all_reduce", "hidden": "all_gather"}[dimension]


def sharded(model: Section, degree: int, *, training: bool = True) -> tuple[OperatorGraph, Sharded]:
    device = DEVICES["v100"]
    graph, roofline = model_graph(model, 4, training=training), Roofline(device)
    return graph, shard(graph, PartTimes(graph, roofline.times(graph), degree, roofline),
                        lambda kind, size: collective_time(kind, size, degree, device).seconds)


def test_a_transformer_layer_is_split_as_megatron_splits_it() -> None:
    """Projections by heads and by output, then by input: two all-reduces forward and two backward."""
    big = GptModel(family="gpt", layers=2, hidden=2048, heads=16, vocabulary=51200, sequence=1024)
    _, found = sharded(big, 4)
    choice = {name: split.dimension if split else None for name, split in found.choices.items()}
    assert [choice[f"layer0.{name}"] for name in ("attention.qkv", "attention.score", "attention.context",
                                                  "attention.dense", "mlp.up", "mlp.down")] == [
        "output", "heads", "heads", "input", "output", "input"]
    assert choice["embedding.tokens"] == "vocabulary" and choice["head.logits"] == "output"
    steps = [(e.exchange.forward, e.exchange.backward) for e in found.exchanges if e.layer == "layer1"]
    assert sorted(steps) == [("all_reduce", "none")] * 2 + [("none", "all_reduce")] * 2


def test_one_device_exchanges_nothing() -> None:
    graph, found = sharded(GPT, 1)
    assert found.graph is graph and not found.exchanges and not exchange_faults(graph, found)


def test_a_dimension_that_does_not_divide_is_not_split() -> None:
    odd = GptModel(family="gpt", layers=1, hidden=60, heads=3, vocabulary=97, sequence=16)
    graph, found = sharded(odd, 2)
    assert not any(isinstance(split, Split) and split.size % 2 for split in found.choices.values())
    assert exchange_faults(graph, found) == []
