"""Whatever a family's sizes: counts by formula, files that round-trip, stages that count what their operators do."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.support.examples import for_all
from weft.models import DEVICES, model_graph
from weft.models.candidates.stages import Stages
from weft.models.graph.operator_files import graph_from_json, graph_to_json
from weft.models.layers.layering import layers_of
from weft.models.spec.base import Section
from weft.models.spec.families import GptModel, T5Model
from weft.models.times.roofline import Roofline


@st.composite
def gpts(draw: st.DrawFn) -> GptModel:
    heads = draw(st.integers(1, 4))
    groups = draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0]))
    return GptModel(
        family="gpt", layers=draw(st.integers(1, 4)), heads=heads, hidden=heads * 8 * draw(st.integers(1, 3)),
        vocabulary=draw(st.integers(1, 300)), sequence=draw(st.integers(1, 32)), kv_heads=groups,
        positions=draw(st.sampled_from(["learned", "rotary"])), norm=draw(st.sampled_from(["layer_norm", "rms_norm"])),
        activation=draw(st.sampled_from(["gelu", "relu", "swiglu", "geglu"])), bias=draw(st.booleans()),
        tied=draw(st.booleans()), attention=draw(st.sampled_from(["fused", "unfused"])), dropout=draw(st.booleans()),
        parallel=draw(st.booleans()))


@st.composite
def t5s(draw: st.DrawFn) -> T5Model:
    heads = draw(st.integers(1, 4))
    return T5Model(
        family="t5", encoder_layers=draw(st.integers(1, 3)), decoder_layers=draw(st.integers(1, 3)), heads=heads,
        hidden=8 * heads, feed_forward=draw(st.integers(1, 40)), vocabulary=draw(st.integers(1, 300)),
        sequence=draw(st.integers(1, 32)), target=draw(st.integers(1, 32)), tied=draw(st.booleans()),
        positions=draw(st.sampled_from(["relative", "learned"])), activation=draw(st.sampled_from(["relu", "geglu"])))


@for_all(gpts(), tries=30)
def test_a_gpt_has_the_parameters_that_its_sizes_say(model: GptModel) -> None:
    h, size, wide = model.hidden, model.hidden // model.heads, 4 * model.hidden
    keys = (model.kv_heads or model.heads) * size
    up = wide * (2 if model.activation in ("swiglu", "geglu") else 1)
    matrices = h * (h + 2 * keys) + h * h + h * up + wide * h
    biases = (h + 2 * keys + h + up + h) if model.bias else 0
    norm = 2 * h if model.norm == "layer_norm" and model.bias else h
    layer = matrices + biases + 2 * norm
    table = model.vocabulary * h
    ends = table * (1 if model.tied else 2) + (model.sequence * h if model.positions == "learned" else 0) + norm
    assert model_graph(model).parameter_count() == model.layers * layer + ends


@for_all(gpts() | t5s(), st.integers(1, 3), st.booleans(), tries=25)
def test_an_operator_file_gives_the_same_graph_back(model: Section, batch: int, training: bool) -> None:
    graph = model_graph(model, batch, training=training)
    assert graph_from_json(graph_to_json(graph)) == graph


@for_all(gpts() | t5s(), st.integers(1, 3), st.data(), tries=25)
def test_a_stage_holds_what_its_operators_hold(model: Section, batch: int, data: st.DataObject) -> None:
    graph = model_graph(model, batch)
    stages = Stages(layers_of(graph, Roofline(DEVICES["v100"]).times(graph), training=True))
    first = data.draw(st.integers(0, len(stages.layers) - 1))
    last = data.draw(st.integers(first + 1, len(stages.layers)))
    names = {layer.name for layer in stages.layers[first:last]}
    inside = [operator.name for operator in graph.operators if operator.layer in names]
    stage = stages.stage(first, last)
    assert stage.activation == graph.saved_bytes(inside) and stage.parameters == graph.parameter_count(inside)
    assert min(stage.workspace_forward, stage.workspace_backward, stage.held, stage.output) >= 0
    whole = stages.stage(0, len(stages.layers))
    assert whole.output == 0 and whole.forward + whole.backward == sum(
        stages.stage(i, i + 1).load for i in range(len(stages.layers)))
