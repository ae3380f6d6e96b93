"""Operator graphs as layers in a row, and stages cut from them."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from weft.models import DEVICES, PUBLISHED, SpecError, model_graph, parse_spec, save_graph
from weft.models.candidates.build import layer_costs
from weft.models.candidates.stages import Stages
from weft.models.graph.operators import Operator, OperatorError, OperatorGraph, Tensor, Work
from weft.models.layers.layering import in_order, is_chain, layers_of
from weft.models.spec.base import Section
from weft.models.spec.families import EvoformerModel, GptModel, MoeModel, T5Model
from weft.models.times.measured_times import Figure, MeasuredOperator, MeasuredTimes, save_times
from weft.models.times.operator_times import Origin
from weft.models.times.roofline import Roofline

T5 = T5Model(family="t5", encoder_layers=2, decoder_layers=3, hidden=64, heads=4, feed_forward=128, vocabulary=96,
             sequence=16, target=8)
GPT = GptModel(family="gpt", layers=3, hidden=64, heads=4, vocabulary=100, sequence=16)
MOE = MoeModel(family="moe", layers=4, hidden=64, heads=4, vocabulary=100, sequence=16, experts=4, every=2)
EVOFORMER = EvoformerModel(family="evoformer", blocks=3, recycles=1)


def graph_and_layers(model: Section, recompute: bool = False) -> tuple[OperatorGraph, Stages]:
    graph = model_graph(model, 2)
    times = Roofline(DEVICES["v100"]).times(graph)
    return graph, Stages(layers_of(graph, times, training=True, recompute=recompute))


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("model", [T5, GPT, EVOFORMER, MOE, PUBLISHED["swin-t"], PUBLISHED["resnet18"],
                                   PUBLISHED["graphpipe-mmt"]], ids=lambda model: model.family)
def test_equal_layers_cost_what_each_costs_alone(model: Section, recompute: bool,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are counted once for all that are like them."""
    graph = model_graph(model, 2)
    times = Roofline(DEVICES["v100"]).times(graph)
    found = layers_of(graph, times, training=True, recompute=recompute)
    numbers = itertools.count()
    monkeypatch.setattr("weft.models.layers.layering._signature", lambda *_: next(numbers))
    assert found == layers_of(graph, times, training=True, recompute=recompute)
    assert next(numbers) == len(found)


@pytest.mark.parametrize("model", [T5, GPT, PUBLISHED["swin-t"], PUBLISHED["resnet18"], PUBLISHED["graphpipe-mmt"],
                                   PUBLISHED["flava"]], ids=lambda model: model.family)
def test_a_stage_keeps_and_holds_what_its_operators_do(model: Section) -> None:
    """Whatever the stage: a storage or parameter that several of its layers share counts once."""
    graph, stages = graph_and_layers(model)
    count = len(stages.layers)
    for first, last in {(0, count), (0, 1), (count // 2, count), (1, count - 1), (count - 2, count)}:
        names = {layer.name for layer in stages.layers[first:last]}
        inside = [operator.name for operator in graph.operators if operator.layer in names]
        stage = stages.stage(first, last)
        assert stage.activation == graph.saved_bytes(inside)
        assert stage.parameters == graph.parameter_count(inside)


def test_what_is_no_chain_is_known_as_such() -> None:
    assert is_chain(model_graph(GPT)) and is_chain(model_graph(PUBLISHED["resnet50"]))
    assert not is_chain(model_graph(T5)) and not is_chain(model_graph(PUBLISHED["graphpipe-mmt"]))


def test_layers_that_need_a_later_one_are_refused() -> None:
    x, y, z = (Tensor(name, 4) for name in "xyz")
    graph = OperatorGraph("g", (Operator("a", "add", Work(), (), (x,), layer="one"),
                                Operator("b", "add", Work(), ("x",), (y,), layer="two"),
                                Operator("c", "add", Work(), ("y",), (z,), layer="one")))
    with pytest.raises(OperatorError, match="layer 'one' stands before layer 'two', but 'c' needs 'b'"):
        is_chain(graph)


def test_recomputation_keeps_what_each_layer_reads_but_embeddings_and_the_loss() -> None:
    _, kept = graph_and_layers(T5)
    graph, again = graph_and_layers(T5, recompute=True)
    for before, after in zip(kept.layers, again.layers, strict=True):
        if before.name in ("embedding", "bridge", "head"):
            assert after == before or after.shared_activations != before.shared_activations
        else:
            assert after.backward == pytest.approx(before.backward + before.forward, abs=2e-9)
            assert after.activation_bytes == before.input_bytes < before.activation_bytes
    decoder = again.stage(4, 7)
    encoded, state = graph.tensors["bridge.norm"].bytes, graph.tensors["decoder0.add2"].bytes
    bias = graph.tensors["decoder0.relative_bias"].bytes  # made in the first decoder layer, read by the others
    assert decoder.activation == encoded + 3 * state + bias


def test_a_layer_s_workspace_is_what_is_live_beyond_what_is_kept() -> None:
    """One linear layer and a ReLU, by hand: (4, 8) -> (4, 16), two bytes an element."""
    x, h, y = (Tensor(name, size, (4, size // 8), "float16") for name, size in (("x", 64), ("h", 128), ("y", 128)))
    source = Operator("s", "add", Work(), (), (x,), input_grad=Work(1), layer="source")
    linear = Operator("l", "linear", Work(1), ("x",), (h,), input_grad=Work(1), weight_grad=Work(1), keeps=("x",),
                      deferred=("x",), layer="layer")
    relu = Operator("r", "relu", Work(1), ("h",), (y,), input_grad=Work(1), keeps=("y",), layer="layer")
    end = Operator("e", "add", Work(), ("y",), (), layer="end")
    graph = OperatorGraph("g", (source, linear, relu, end))
    layer = layers_of(graph, Roofline(DEVICES["v100"]).times(graph), training=True)[1]
    assert (layer.activation_bytes, layer.input_bytes, layer.output_bytes) == (64 + 128, 64, 128)
    assert layer.workspace_forward == 128  # x, h and y at the ReLU; x and y are kept
    assert layer.workspace_backward == 256  # at the ReLU x and y, and the gradients of h and y
    assert layer.weight_grad_bytes == 64 + 128  # x and the gradient of h
    assert layer.working_set == 64 + 128 or layer.working_set == 64 + 128 + 128


SPEC = """
name: x
model: {model}
{costs}cluster: {{gpus: {gpus}, memory: 32 GiB, bandwidth: 100 GB/s{device}}}
{run}: {{micro_batches: 4{more}}}
"""
T5_SIZES = ("{family: t5, encoder_layers: 2, decoder_layers: 2, hidden: 64, heads: 4, feed_forward: 128, "
            "vocabulary: 96, sequence: 16}")


def spec_text(model: str = T5_SIZES, costs: str = "costs: v100\n", gpus: int = 2, device: str = "",
              run: str = "training", more: str = "") -> str:
    return SPEC.format(model=model, costs=costs, gpus=gpus, device=device, run=run, more=more)


@pytest.mark.parametrize(("text", "words"), [
    (spec_text(costs=""), "cluster.device is missing: modelled costs need it"),
    (spec_text(costs="costs: roofline\n"), "cluster.device is missing"),
    (spec_text(costs="costs: v200\n"), "costs is 'v200', it must be a shipped profile"),
    (spec_text(costs="costs: t5-770m-v100\n"), "no row of it is of this model's sizes"),
    (spec_text("{family: swin, width: 96, depths: [2], heads: [3]}", "costs: t5-770m-v100\n"),
     "profiles are for the families gpt and t5; for swin give roofline"),
    (spec_text(more=", parameter_bytes: 3"), "parameter_bytes is 3, but a family's layers compute with 2"),
    (spec_text(T5_SIZES.replace("heads: 4", "heads: 5")), "model: hidden is 64, it must be a multiple of heads"),
    (spec_text(T5_SIZES.replace("t5", "t6")), "model.family is 't6', it must be gpt, moe, t5"),
    (spec_text(T5_SIZES.replace("vocabulary", "vocabulry")), "unknown key 'vocabulry'; did you mean 'vocabulary'?"),
    (spec_text(T5_SIZES.replace("hidden: 64, ", "")), "model.hidden is missing: width of the hidden state"),
    (spec_text(T5_SIZES.replace("hidden: 64", "hidden: -64")), "model.hidden is -64, it must be at least 1"),
    (spec_text(device=", device: v200"), "cluster.device is 'v200', it must be one of v100"),
    (spec_text("{config: none.json}"), "model.config is none.json, but there is no file none.json"),
    (spec_text("{config: 3}"), "model.config is 3, it must be text"),
    (spec_text("{config: a.json, layers: 3}"), "unknown key 'layers'; the keys are config, sequence"),
])
def test_a_mistake_in_a_family_s_spec_is_named(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"spec: |none\.json") as caught:
        layer_costs(parse_spec(text))
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A T5 as an operator graph in a file, as if captured."""
    save_graph(model_graph(T5, 3), tmp_path / "t5.json")
    return tmp_path


def test_an_operator_graph_in_a_file_costs_what_its_family_does(folder: Path) -> None:
    sizes = ", ".join(f"{key}: {value}" for key, value in T5.model_dump(exclude_defaults=True).items())
    family = layer_costs(parse_spec(spec_text(f"{{{sizes}}}", more=", micro_batch_size: 3")))
    assert layer_costs(parse_spec(spec_text("{graph: t5.json}"), folder=folder)) == family


def test_measured_operators_are_taken_and_the_rest_filled_in_from_them(folder: Path) -> None:
    graph = model_graph(T5, 3)
    linear = [operator.name for operator in graph.operators if operator.kind == "linear"]

    def figure(milliseconds: float) -> Figure:
        return Figure(milliseconds * 1e-3, Origin.MEASURED)

    times = MeasuredTimes("t5", "here", "2.13", (MeasuredOperator(
        "linear", "", (linear[0],), figure(1), figure(2), figure(3), figure(0), figure(0)),))
    save_times(times, folder / "times.json")
    text = spec_text("{graph: t5.json}", "costs: times.json\n")
    costs = layer_costs(parse_spec(text, folder=folder))
    assert all(layer.forward > 0 for layer in costs)
    save_times(MeasuredTimes("t5", "here", "2.13", ()), folder / "times.json")
    with pytest.raises(SpecError, match=r"costs is times.json: operator .* has no time"):
        layer_costs(parse_spec(text, folder=folder))


def test_a_graph_s_layers_follow_its_order_and_begin_anew_when_come_back_to() -> None:
    x, y, z, w = (Tensor(name, 4) for name in "xyzw")
    graph = in_order(OperatorGraph("g", (
        Operator("d", "add", Work(), ("z",), (w,), layer="blocks.0.norm"),
        Operator("a", "add", Work(), (), (x,), layer="blocks.0.mlp"),
        Operator("b", "add", Work(), ("x",), (y,)), Operator("c", "add", Work(), ("y",), (z,), layer="head"))))
    assert [(operator.name, operator.layer) for operator in graph.operators] == [
        ("a", "blocks.0"), ("b", "blocks.0"), ("c", "head"), ("d", "blocks.0#2")]


@pytest.mark.parametrize(("text", "words"), [
    (spec_text("{graph: none.json}"), "none.json"),
    (spec_text("{graph: t5.json}", more=", micro_batch_size: 2"), "micro_batch_size is 2, but t5.json is one"),
    (spec_text("{graph: t5.json}", more=", parameter_bytes: 4"), "have 2; give parameter_bytes: 2"),
    (spec_text("{graph: t5.json}", "costs: t5-770m-v100\n"), "no row of it is of this model's sizes"),
    (spec_text("{graph: t5.json}", "costs: none.json\n"), "none.json"),
    (spec_text("{graph: t5.json, layers: 2}"), "unknown key 'layers'; the keys are graph"),
])
def test_a_mistake_with_a_graph_is_named(text: str, words: str, folder: Path) -> None:
    with pytest.raises((ValueError, OSError)) as caught:
        layer_costs(parse_spec(text, folder=folder))
    assert words in str(caught.value) and "\n" not in str(caught.value)
