"""`weft place` on model specs and operator graphs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import weft
from weft.models import DEVICES, SpecError, model_graph, parse_spec, save_graph
from weft.models.candidates.placement_sources import (
    Hardware,
    TrainingState,
    all_reduce_seconds,
    by_layer,
    by_operator,
    placement_problem,
)
from weft.models.graph.operators import Operator, OperatorGraph, Parameter, Tensor, Work
from weft.models.layers.collectives import collective_time
from weft.models.spec.families import MmtModel, UnoModel
from weft.models.times.operator_times import OperatorTime, Origin
from weft.models.times.roofline import Roofline
from weft.solver.io.entries import FormatError
from weft.solver.placement import PlacementError, place_graph

SPEC = """
name: towers
model: {family: uno, features: [256, 256, 256], tower: [512, 512], joint: [64]}
cluster: {gpus: 4, memory: 16 GiB, device: v100, links: nvlink-v100}
training: {micro_batches: 8, micro_batch_size: 32, parameter_bytes: 4, gradient_bytes: 4}
"""


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "towers.json"
    save_graph(model_graph(UnoModel(family="uno", features=(256,) * 3, tower=(512, 512), joint=(64,)), 32,
                           dtype="float32"), path)
    return path


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "towers.yaml"
    path.write_text(SPEC)
    return path


def test_a_spec_and_its_operator_graph_agree(spec: Path, graph: Path) -> None:
    ours, theirs = weft.place(spec, effort=1), weft.place(graph, devices={"v100": (4, None)}, effort=1)
    assert [stage.compute for stage in ours.stages] == pytest.approx([stage.compute for stage in theirs.stages])


def test_devices_of_several_types_have_times_of_their_own(graph: Path) -> None:
    found = weft.place(graph, devices={"a100-40gb": (2, None), "cpu": (1, 2.0**33)}, effort=1)
    assert [kind.memory for kind in found.problem.kinds] == [38 * 2**30, 2**33]  # 39 as CUDA has them, one kept free
    assert found.problem.kinds[1].transfer_factor == 60  # NVLink's 300 GB/s over 5
    fast, slow = found.problem.nodes[0].times
    assert fast is not None and slow is not None and fast < slow


@pytest.mark.parametrize(("options", "message"), [
    ({}, "says nothing of devices"),
    ({"devices": {"tpu": (4, None)}}, "no device type 'tpu'"),
    ({"devices": {"v100": (4, None)}, "recompute": True}, "recompute chooses"),
    ({"devices": {"v100": (4, None)}, "slack": 0.1}, "slack is for a graph of stages"),
    ({"devices": {"v100": (4, None)}, "latency": True, "stage_graph": True}, "leave one of them out"),
    ({"devices": {"v100": (4, None)}, "replicate": True}, "ask for a graph of stages too"),
    ({"devices": {"v100": (4, None)}, "replicate": True, "stage_graph": True}, "give a spec of a model family"),
])
def test_what_an_operator_graph_needs_is_said(graph: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        weft.place(graph, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "text", "error", "said"), [
    ("row.yaml", "name: row\nmodel: {layers: [{name: a, forward: 1 ms, backward: 1 ms}]}\n"
     "cluster: {gpus: 1, memory: 1 GiB}\ntraining: {micro_batches: 1}", SpecError, "placing needs operators"),
    ("other.json", "[1]", FormatError, r"other\.json")])
def test_what_has_no_operators_is_refused(tmp_path: Path, name: str, text: str, error: type[Exception],
                                          said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(error, match=said):
        weft.place(tmp_path / name)


# -- replicated stages -------------------------------------------------------------------------------------------------


def test_stages_of_a_spec_may_be_on_several_gpus() -> None:
    """Three towers and what joins them fill four of eight GPUs; replicated they fill all."""
    spec = parse_spec(SPEC.replace("gpus: 4", "gpus: 8").replace("32,", "2048,"))
    one, several = (weft.place(spec, stage_graph=True, replicate=replicate) for replicate in (False, True))
    assert not one.problem.degrees
    assert [degree.devices for degree in several.problem.degrees] == [2, 4, 8]
    assert [stage.devices for stage in several.stages] == [2, 2, 2, 2]
    assert several.status == "optimal"
    assert several.objective < one.objective
    assert spec.training is not None
    halves = spec.model_copy(update={"training": spec.training.model_copy(update={"micro_batch_size": 1024})})
    assert [stage.compute for stage in several.stages] == pytest.approx(
        [stage.compute for stage in weft.place(halves, stage_graph=True).stages])
    assert [stage.resident for stage in several.stages] == [stage.resident for stage in one.stages]
    assert [stage.activations * 2 for stage in several.stages] == [stage.activations for stage in one.stages]
    gradients = 4 * sum(node.gradient for node in several.problem.nodes) / 4
    ring = collective_time("all_reduce", int(gradients), 2, DEVICES["v100"]).seconds
    assert sum(stage.all_reduce for stage in several.stages) == pytest.approx(ring / 8)


@pytest.mark.parametrize(("change", "message"), [
    (("micro_batch_size: 32", "micro_batch_size: 3"), "micro_batch_size is 3, and replicas of a stage share each"),
    (("memory: 16 GiB", "memory: [16 GiB, 16 GiB, 8 GiB, 8 GiB]"), "cluster.memory differs among GPUs"),
])
def test_a_spec_whose_stages_cannot_be_replicated_is_refused(change: tuple[str, str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        weft.place(parse_spec(SPEC.replace(*change)), stage_graph=True, replicate=True)


def test_replicas_over_a_link_of_unknown_devices_send_their_gradients_around_a_ring() -> None:
    spec = parse_spec(SPEC.replace("device: v100, links: nvlink-v100", "bandwidth: 10 GB/s"))
    assert all_reduce_seconds(spec, 10**9, 4) == pytest.approx(2 * 3 / 4 * 0.1)


SECOND = OperatorTime(1.0, 1.5, 0.5, Origin.MODELLED)


def seconds(size: int) -> float:
    return size / 100


def viewed(**changes: object) -> OperatorGraph:
    """a -> b, and a -> view -> c; a and b both keep a's output, c holds a parameter of a's."""
    shared, own = Parameter("w", 10, 40), Parameter("v", 5, 20)
    a = Operator("a", "linear", Work(1), ("x",), (Tensor("ya", 100, (), "float32"),), None, Work(1), (shared,),
                 keeps=("ya",), layer="first")
    view = Operator("view", "view", Work(), ("ya",), (Tensor("seen", 100, (), "float32", "ya"),), Work(), layer="first")
    b = Operator("b", "relu", Work(1), ("ya",), (Tensor("yb", 30, (), "float32"),), Work(1), keeps=("ya", "yb"),
                 workspace=7, layer="second")
    c = Operator("c", "linear", Work(1), ("seen", "yb"), (Tensor("yc", 10, (), "float32"),), Work(1), Work(1),
                 (shared, own), keeps=("seen",), layer="third")
    made = OperatorGraph("small", (a, view, b, c), (Tensor("x", 8),), ("yc",))
    return dataclasses.replace(made, **changes) if changes else made  # type: ignore[arg-type]


def hardware(given: OperatorGraph, count: int = 2, memory: int | None = None, kind: str = "gpu") -> Hardware:
    return Hardware(kind, count, memory, {operator.name: SECOND for operator in given.operators})


def test_an_operator_costs_all_its_passes_and_holds_parameters_state_and_what_it_keeps() -> None:
    problem = placement_problem(viewed(), [hardware(viewed(), memory=1000)], seconds, training=TrainingState(12))
    assert [node.name for node in problem.nodes] == ["a", "view", "b", "c"]
    assert [node.times for node in problem.nodes] == [(3.0,)] * 4
    assert [node.resident for node in problem.nodes] == [40 + 120, 0, 0, 60 + 180]
    assert [node.per_micro_batch for node in problem.nodes] == [100, 0, 130, 100]
    assert problem.kinds[0].memory == 1000 - 7  # the largest workspace


def test_a_tensor_travels_there_and_its_gradient_back_once_for_all_readers_of_its_storage() -> None:
    problem = placement_problem(viewed(), [hardware(viewed())], seconds)
    sent = {(tensor.producer, tensor.consumers): tensor.time for tensor in problem.tensors}
    assert sent == {(0, (1, 2)): 2.0, (1, (3,)): 2.0, (2, (3,)): 0.6}


def test_what_needs_no_gradient_travels_one_way() -> None:
    operators = list(viewed().operators)
    operators[3] = dataclasses.replace(operators[3], input_grad=None)
    problem = placement_problem(viewed(operators=tuple(operators)), [hardware(viewed())], seconds)
    assert {tensor.producer: tensor.time for tensor in problem.tensors}[2] == 0.3


def test_a_layer_counts_a_storage_that_several_of_its_operators_keep_once() -> None:
    problem = placement_problem(viewed(), [hardware(viewed())], seconds, parts={"most": ["a", "view", "b"], "c": ["c"]})
    assert [node.per_micro_batch for node in problem.nodes] == [130, 100]
    assert [node.times for node in problem.nodes] == [(9.0,), (3.0,)]


def test_inference_keeps_nothing_and_has_no_state() -> None:
    problem = placement_problem(viewed(), [hardware(viewed())], seconds, training=None)
    assert [node.per_micro_batch for node in problem.nodes] == [0] * 4
    assert problem.nodes[0].resident == 40


def test_operators_run_on_the_kinds_they_name_only_and_share_a_stage_with_their_class() -> None:
    operators = list(viewed().operators)
    operators[0] = dataclasses.replace(operators[0], devices=frozenset({"cpu"}), colocate="tied")
    operators[3] = dataclasses.replace(operators[3], colocate="tied")
    given = viewed(operators=tuple(operators))
    problem = placement_problem(given, [hardware(given), hardware(given, 1, kind="cpu")], seconds)
    assert problem.nodes[0].times == (None, 3.0)
    assert problem.classes == ((0, 3), (1,), (2,))


@pytest.mark.parametrize(("parts", "message"), [
    ({"p": ["a", "view", "b"]}, "operator 'c' is in no part"),
    ({"p": ["a", "view", "b", "c"], "q": ["a"]}, "operator 'a' is in parts 'p' and 'q'"),
    ({"p": ["a", "view", "b", "c"], "q": []}, "part 'q' has no operators"),
    ({"p": ["a", "view", "b", "c", "d"]}, "names operator 'd'"),
    ({"p": ["a", "c"], "q": ["view", "b"]}, "form a cycle"),
])
def test_parts_that_mean_nothing_are_refused(parts: dict[str, list[str]], message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        placement_problem(viewed(), [hardware(viewed())], seconds, parts=parts)


def test_an_operator_without_a_time_is_refused() -> None:
    with pytest.raises(PlacementError, match="operator 'a' has no time on gpu"):
        placement_problem(viewed(), [Hardware("gpu", 1, None, {})], seconds)


def test_branches_of_a_multimodal_transformer_become_stages_side_by_side() -> None:
    model = MmtModel(family="mmt", branches=3, layers=2, hidden=64, heads=4, feed_forward=256, sequence=32)
    made = model_graph(model, 2)
    device = DEVICES["v100"]
    problem = placement_problem(made, [Hardware("gpu", 7, device.memory, Roofline(device).times(made))],
                                lambda size: size / device.link, parts=by_layer(made), training=TrainingState(14))
    assert len(problem.nodes) == 7
    assert place_graph(problem, effort=10.0).depth == 3
    assert len(by_operator(made)) == len(made.operators)
