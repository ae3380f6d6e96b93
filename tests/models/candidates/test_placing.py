"""From operator graphs to placement problems."""

from __future__ import annotations

import dataclasses

import pytest

from weft.models.candidates.placing import Hardware, TrainingState, by_layer, by_operator, placement_problem
from weft.models.graph.operators import Operator, OperatorGraph, Parameter, Tensor, Work
from weft.models.hardware.devices import DEVICES
from weft.models.spec.families import MmtModel
from weft.models.times.operator_times import OperatorTime, Origin
from weft.models.times.roofline import Roofline
from weft.models.zoo.graphs import model_graph
from weft.solver.placement.dag.place_graph import place_graph
from weft.solver.placement.problem import PlacementError

SECOND = OperatorTime(1.0, 1.5, 0.5, Origin.MODELLED)


def seconds(size: int) -> float:
    return size / 100


def graph(**changes: object) -> OperatorGraph:
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
    problem = placement_problem(graph(), [hardware(graph(), memory=1000)], seconds, training=TrainingState(12))
    assert [node.name for node in problem.nodes] == ["a", "view", "b", "c"]
    assert [node.times for node in problem.nodes] == [(3.0,)] * 4
    assert [node.resident for node in problem.nodes] == [40 + 120, 0, 0, 60 + 180]
    assert [node.per_micro_batch for node in problem.nodes] == [100, 0, 130, 100]
    assert problem.kinds[0].memory == 1000 - 7  # the largest workspace


def test_a_tensor_travels_there_and_its_gradient_back_once_for_all_readers_of_its_storage() -> None:
    problem = placement_problem(graph(), [hardware(graph())], seconds)
    sent = {(tensor.producer, tensor.consumers): tensor.time for tensor in problem.tensors}
    assert sent == {(0, (1, 2)): 2.0, (1, (3,)): 2.0, (2, (3,)): 0.6}


def test_what_needs_no_gradient_travels_one_way() -> None:
    operators = list(graph().operators)
    operators[3] = dataclasses.replace(operators[3], input_grad=None)
    problem = placement_problem(graph(operators=tuple(operators)), [hardware(graph())], seconds)
    assert {tensor.producer: tensor.time for tensor in problem.tensors}[2] == 0.3


def test_a_layer_counts_a_storage_that_several_of_its_operators_keep_once() -> None:
    problem = placement_problem(graph(), [hardware(graph())], seconds, parts={"most": ["a", "view", "b"], "c": ["c"]})
    assert [node.per_micro_batch for node in problem.nodes] == [130, 100]
    assert [node.times for node in problem.nodes] == [(9.0,), (3.0,)]


def test_inference_keeps_nothing_and_has_no_state() -> None:
    problem = placement_problem(graph(), [hardware(graph())], seconds, training=None)
    assert [node.per_micro_batch for node in problem.nodes] == [0] * 4
    assert problem.nodes[0].resident == 40


def test_operators_run_on_the_kinds_they_name_only_and_share_a_stage_with_their_class() -> None:
    operators = list(graph().operators)
    operators[0] = dataclasses.replace(operators[0], devices=frozenset({"cpu"}), colocate="tied")
    operators[3] = dataclasses.replace(operators[3], colocate="tied")
    given = graph(operators=tuple(operators))
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
        placement_problem(graph(), [hardware(graph())], seconds, parts=parts)


def test_an_operator_without_a_time_is_refused() -> None:
    with pytest.raises(PlacementError, match="operator 'a' has no time on gpu"):
        placement_problem(graph(), [Hardware("gpu", 1, None, {})], seconds)


def test_branches_of_a_multimodal_transformer_become_stages_side_by_side() -> None:
    model = MmtModel(family="mmt", branches=3, layers=2, hidden=64, heads=4, feed_forward=256, sequence=32)
    made = model_graph(model, 2)
    device = DEVICES["v100"]
    problem = placement_problem(made, [Hardware("gpu", 7, device.memory, Roofline(device).times(made))],
                                lambda size: size / device.link, parts=by_layer(made), training=TrainingState(14))
    assert len(problem.nodes) == 7
    assert place_graph(problem, effort=10.0).depth == 3
    assert len(by_operator(made)) == len(made.operators)
