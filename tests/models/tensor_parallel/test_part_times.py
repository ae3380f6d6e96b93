"""Times of parts of operators: rows of profiles of several devices, taken apart from their collectives.

Layouts and the exchanges between them, against numpy: what devices compute, put together, is what one computes.
"""

from __future__ import annotations

import itertools
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.oracles.exchanges import exchange_faults
from weft.app.lib.verdicts import choice_lines
from weft.models import DEVICES, OperatorGraph, model_graph, parse_spec
from weft.models.graph.operators import Layout, Operator, OperatorError, Split
from weft.models.layers.collectives import collective_time
from weft.models.spec.base import Section
from weft.models.spec.families import GptModel, T5Model
from weft.models.tensor_parallel.part_times import PartTimes, TensorNeed, exchange, gradient_needed, step
from weft.models.tensor_parallel.shapes import together
from weft.models.tensor_parallel.shard import Sharded, shard
from weft.models.times.operator_times import Origin
from weft.models.times.profile_times import ProfileTimes, rows_of
from weft.models.times.profiles import DEGREES, profiles_beside, shipped_profile
from weft.models.times.roofline import Roofline
from weft.models.zoo.lib.builder import GraphBuilder, linear
from weft.models.zoo.lib.embeddings import embedding

V100 = DEVICES["v100"]
GPT = GptModel(family="gpt", layers=1, hidden=2048, heads=32, vocabulary=51200, sequence=2048)
T5 = T5Model(family="t5", encoder_layers=1, decoder_layers=1, hidden=1024, heads=16, feed_forward=4096,
             vocabulary=30592, sequence=2048, target=512, positions="learned", norm="layer_norm", activation="gelu",
             bias=True)
MODELS: dict[str, Section] = {"gpt-1.3b-v100": GPT, "t5-770m-v100": T5}


def profile_of(name: str, batch: int, sizes: tuple[int, ...] = (1, 2, 4, 8)) -> ProfileTimes:
    tables = {degree: {size: shipped_profile(name, size, degree) for size in sizes} for degree in (1, *DEGREES)}
    return ProfileTimes(tables[1], batch, Roofline(V100), name, {degree: tables[degree] for degree in DEGREES})


def sharded(graph: OperatorGraph, profile: ProfileTimes, degree: int) -> tuple[PartTimes, Sharded]:
    def timer(kind: str, size: int) -> float:
        return collective_time(kind, size, degree, V100).seconds  # type: ignore[arg-type]

    parts = PartTimes(graph, profile.times(graph), degree, Roofline(V100), profile.rows_together(graph, degree), timer)
    return parts, shard(graph, parts, timer)


@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("name", MODELS)
def test_parts_and_their_exchanges_take_what_was_measured(name: str, degree: int) -> None:
    """A layer on 2, 4 and 8 GPUs takes the sum of its rows, collectives included: forward and backward."""
    batch = 8
    graph, profile = model_graph(MODELS[name], batch), profile_of(name, batch)
    _, found = sharded(graph, profile, degree)
    rows, table = rows_of(graph), shipped_profile(name, batch, degree)
    for layer in {operator.layer for operator in graph.operators} - {"bridge", "head"}:  # norms of another size
        names = [operator.name for operator in graph.operators if operator.layer == layer]
        assert {found.times[operator].origin for operator in names} == {Origin.MEASURED}
        # What every GPU computes whole has the time that it takes on one GPU.
        whole = {rows[operator] for operator in names if found.choices[operator] is None}
        expected = [shipped_profile(name, batch)[row] if row in whole else table[row]
                    for row in {rows[operator] for operator in names}]
        steps = [entry for entry in found.exchanges if entry.layer == layer]
        assert sum(found.times[operator].forward for operator in names) + sum(e.forward for e in steps) == (
            pytest.approx(sum(row.forward for row in expected), abs=1e-7))
        assert sum(found.times[operator].input_grad + found.times[operator].weight_grad for operator in names) + sum(
            e.backward for e in steps) == pytest.approx(sum(row.backward for row in expected), abs=1e-7)


def test_a_row_is_taken_apart_by_hand() -> None:
    """Attention's output projection of GPT-1.3B at micro-batch 2 on 2 GPUs: 818.981 us with the sum of 16 MiB, which
    takes 482 us alone; its backward has no sum."""
    graph = model_graph(GPT, 2)
    parts, found = sharded(graph, profile_of("gpt-1.3b-v100", 2), 2)
    operator = graph.by_name["layer0.attention.dense"]
    time = parts.of(operator, found.choices[operator.name])
    assert time.forward == pytest.approx(818.981e-6 - 482e-6)
    assert time.input_grad + time.weight_grad == pytest.approx(414.089e-6, abs=2e-9)
    assert time.origin is Origin.MEASURED


def test_between_measured_sizes_parts_are_interpolated() -> None:
    graph = model_graph(GPT, 3)
    row = {next(iter(row.dimensions)): row for row in profile_of("gpt-1.3b-v100", 3).rows_together(graph, 4)}
    low, high = (shipped_profile("gpt-1.3b-v100", size, 4)["enc-MLP-GEMM-1"] for size in (2, 4))
    assert row["layer0.mlp.up"].origin is Origin.INTERPOLATED
    assert row["layer0.mlp.up"].forward == pytest.approx((low.forward + high.forward) / 2)
    assert not profile_of("gpt-1.3b-v100", 16).rows_together(model_graph(GPT, 16), 4)
    assert not profile_of("gpt-1.3b-v100", 3).rows_together(graph, 3)


def test_a_row_shorter_than_its_collective_leaves_the_model() -> None:
    """T5 at micro-batch 1 on 8 GPUs: 210 us for a projection with a sum that alone takes 258 us."""
    graph = model_graph(T5, 1)
    parts, found = sharded(graph, profile_of("t5-770m-v100", 1), 8)
    name = "encoder0.attention.dense"
    time = parts.of(graph.by_name[name], found.choices[name])
    assert time.origin is Origin.MODELLED and time.forward > 0


def test_a_profile_s_files_for_several_gpus_are_found_by_name(tmp_path: Path) -> None:
    for name in ("my[1]_tp1_a.csv", "my[1]_tp2_a.csv", "my[1]_tp16_a.csv", "my[1]_tpx_a.csv", "my1_tp4_a.csv"):
        (tmp_path / name).touch()
    assert profiles_beside(tmp_path / "my[1]_tp1_a.csv") == {2: tmp_path / "my[1]_tp2_a.csv",
                                                           16: tmp_path / "my[1]_tp16_a.csv"}
    assert profiles_beside(tmp_path / "mine.csv") == {}


@pytest.mark.parametrize("own_files", [False, True])
def test_a_solve_on_measured_costs_measures_groups_of_gpus_too(own_files: bool, tmp_path: Path) -> None:
    """GPT-1.3B where the device is named, with the shipped profile or a user's files of its form: what the result says
    of each stage's times."""
    costs = "gpt-1.3b-v100"
    if own_files:
        for degree in (1, 2, 4):
            name = f"gpt_1_3B_mbs1_tp{degree}_algo0.csv"
            (tmp_path / name).write_text((resources.files("weft.models") / "data" / "aceso" / name).read_text())
        costs = str(tmp_path / "gpt_1_3B_mbs1_tp1_algo0.csv")
    spec = parse_spec(f"""
name: test
model: {{family: gpt, layers: 2, hidden: 2048, heads: 32, vocabulary: 51200, sequence: 2048}}
costs: {costs}
cluster: {{gpus: 4, memory: 32 GiB, device: v100, links: nvlink-v100}}
training: {{micro_batches: 8}}
placement: {{shapes: [tensor, m], backward: [full]}}
""")
    found = together(spec)
    assert found is not None and found[1]
    space = found[0]
    assert space.origins(4, {"layer0"}) == {"measured": 1.0}
    schedule = weft.solve(spec, effort=0.1)
    assert "100% of its time is measured" in "\n".join(choice_lines(schedule))


SMALL = GptModel(family="gpt", layers=2, hidden=64, heads=4, vocabulary=96, sequence=16)


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


def sharded_model(model: Section, degree: int, *, training: bool = True) -> tuple[OperatorGraph, Sharded]:
    device = DEVICES["v100"]
    graph, roofline = model_graph(model, 4, training=training), Roofline(device)
    return graph, shard(graph, PartTimes(graph, roofline.times(graph), degree, roofline),
                        lambda kind, size: collective_time(kind, size, degree, device).seconds)


def test_a_transformer_layer_is_split_as_megatron_splits_it() -> None:
    """Projections by heads and by output, then by input: two all-reduces forward and two backward."""
    big = GptModel(family="gpt", layers=2, hidden=2048, heads=16, vocabulary=51200, sequence=1024)
    _, found = sharded_model(big, 4)
    choice = {name: split.dimension if split else None for name, split in found.choices.items()}
    assert [choice[f"layer0.{name}"] for name in ("attention.qkv", "attention.score", "attention.context",
                                                  "attention.dense", "mlp.up", "mlp.down")] == [
        "output", "heads", "heads", "input", "output", "input"]
    assert choice["embedding.tokens"] == "vocabulary" and choice["head.logits"] == "output"
    steps = [(e.exchange.forward, e.exchange.backward) for e in found.exchanges if e.layer == "layer1"]
    assert sorted(steps) == [("all_reduce", "none")] * 2 + [("none", "all_reduce")] * 2


def test_one_device_exchanges_nothing() -> None:
    graph, found = sharded_model(SMALL, 1)
    assert found.graph is graph and not found.exchanges and not exchange_faults(graph, found)


def test_a_dimension_that_does_not_divide_is_not_split() -> None:
    odd = GptModel(family="gpt", layers=1, hidden=60, heads=3, vocabulary=97, sequence=16)
    graph, found = sharded_model(odd, 2)
    assert not any(isinstance(split, Split) and split.size % 2 for split in found.choices.values())
    assert exchange_faults(graph, found) == []
