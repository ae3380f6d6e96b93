"""One operator per layer: nothing that a placement counts is lost, and no layers wait for each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.models.graph.layers_view import by_layer, list_entry
from weft.models.graph.operators import Operator, OperatorGraph, Parameter, Tensor, Work


@pytest.mark.parametrize(("path", "layer"), [
    ("encoder.layers.3.self_attn", "encoder.layers.3"), ("blocks.0", "blocks.0"), ("head", "head"),
    ("vision.norm", "vision"), ("stages.1.blocks.2.mlp", "stages.1"), ("", "")])
def test_a_layer_is_the_outermost_list_entry(path: str, layer: str) -> None:
    assert list_entry(path) == layer


def operator(name: str, layer: str, reads: tuple[str, ...], **more: object) -> Operator:
    return Operator(name, "linear", Work(2, 3, 4), reads, (Tensor(f"{name}.y", 8),), Work(1), Work(5),
                    (Parameter(f"{name}.w", 1, 4),), layer=layer, **more)  # type: ignore[arg-type]


def test_a_layer_keeps_and_defers_what_its_operators_do() -> None:
    graph = OperatorGraph("m", (
        operator("a", "blocks.0.up", ("x",), keeps=("x",), deferred=("x",)),
        operator("b", "blocks.0.down", ("a.y",), keeps=("a.y", "b.s"), deferred=("a.y",), internal=(Tensor("b.s", 2),)),
        Operator("norm", "layer_norm", Work(0, 1, 1), ("b.y",), (Tensor("n", 8),), Work(1), Work(7), layer="blocks.0"),
        operator("head", "head", ("n",), keeps=("n",)),
    ), (Tensor("x", 16),), ("head.y",))
    view = by_layer(graph)
    assert [o.name for o in view.operators] == ["blocks.0", "head"]
    block = view.by_name["blocks.0"]
    assert block.forward == Work(4, 7, 9)
    assert block.input_grad == Work(3 + 7) and block.weight_grad == Work(10)  # the norm's own come with the inputs'
    assert block.keeps == ("x", "a.y", "b.s") and block.inputs == ("x",) and [t.name for t in block.outputs] == ["n"]
    assert block.deferred == ("x", "a.y", "a.y.gradient", "b.y.gradient")
    assert view.by_name["head"].kind == "linear" and view.saved_bytes() == graph.saved_bytes()


def test_a_layer_that_is_come_back_into_is_several() -> None:
    graph = OperatorGraph("m", (operator("a", "one", ("x",)), operator("b", "two", ("a.y",)),
                                operator("c", "one", ("b.y",)), operator("d", "one", ("c.y",))), (Tensor("x", 1),))
    assert [o.name for o in by_layer(graph).operators] == ["one", "two", "one#2"]


def test_layers_that_wait_for_each_other_in_turn_stay_apart() -> None:
    graph = OperatorGraph("m", (operator("a1", "one", ("x",)), operator("b2", "two", ("x",)),
                                operator("b1", "two", ("a1.y",)), operator("a2", "one", ("b2.y",))), (Tensor("x", 1),))
    assert {o.name for o in by_layer(graph).operators} == {"a1", "a2", "b1", "b2"}


@st.composite
def graphs(draw: st.DrawFn) -> OperatorGraph:
    tensors, operators = ["x"], []
    for i in range(draw(st.integers(1, 9))):
        reads = tuple(draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=3, unique=True)))
        y = Tensor(f"t{i}", draw(st.integers(0, 9)), base=draw(st.sampled_from([None, *reads])))
        internal = (Tensor(f"s{i}", draw(st.integers(0, 9))),)
        keeps = tuple(draw(st.lists(st.sampled_from([*reads, y.name, f"s{i}"]), unique=True)))
        operators.append(Operator(
            f"op{i}", "linear", Work(draw(st.integers(0, 5))), reads, (y,), draw(st.sampled_from([None, Work(1)])),
            draw(st.sampled_from([None, Work(3)])), draw(st.sampled_from([(), (Parameter("w", 1, 4),)])), internal,
            keeps, draw(st.sampled_from([None, keeps[:1]])), layer=draw(st.sampled_from(["", "a.0.x", "a.0.y", "b"]))))
        tensors.append(y.name)
    return OperatorGraph("m", tuple(operators), (Tensor("x", 7),), (tensors[-1],))


@given(graphs())
def test_nothing_that_is_counted_is_lost(graph: OperatorGraph) -> None:
    view = by_layer(graph)
    assert view.saved_bytes() == graph.saved_bytes()
    assert view.parameter_bytes() == graph.parameter_bytes()
    assert sum(o.forward.flops for o in view.operators) == sum(o.forward.flops for o in graph.operators)
    total = [sum(work.flops for o in g.operators for work in (o.input_grad, o.weight_grad) if work is not None)
             for g in (view, graph)]
    assert total[0] == total[1]
    assert {o.layer for o in view.operators} == {list_entry(o.layer) for o in graph.operators}
