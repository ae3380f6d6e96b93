"""Operator graphs: what is counted once, and what is refused."""

from __future__ import annotations

import pytest

from weft.models.graph.operators import Operator, OperatorError, OperatorGraph, Parameter, Split, Tensor, Work

WORK = Work(flops=2.0, bytes_read=4, bytes_written=4)
TABLE = Parameter("table", count=50, bytes=100)


def tied_model() -> OperatorGraph:
    """An embedding and a head that share a table, with two readers of the embedding's output between them."""
    return OperatorGraph("tied", (
        Operator("embed", "embedding", WORK, inputs=("tokens",), outputs=(Tensor("x", 8),), parameters=(TABLE,),
                 keeps=("tokens",)),
        Operator("left", "linear", WORK, inputs=("x",), outputs=(Tensor("l", 8), Tensor("l.t", 8, base="l")),
                 parameters=(Parameter("w", 10, 20),), keeps=("x",)),
        Operator("right", "gelu", WORK, inputs=("x",), outputs=(Tensor("r", 8),), internal=(Tensor("mask", 1),),
                 keeps=("x", "mask")),
        Operator("head", "linear", WORK, inputs=("l", "l.t", "r"), outputs=(Tensor("y", 2),), parameters=(TABLE,),
                 keeps=("l", "l.t", "r")),
    ), inputs=(Tensor("tokens", 3),), outputs=("y",))


def test_a_shared_parameter_counts_once() -> None:
    assert tied_model().parameter_count() == 60
    assert tied_model().parameter_bytes(["embed", "head"]) == 100


def test_a_storage_that_several_keep_counts_once() -> None:
    graph = tied_model()
    assert graph.saved_bytes(["left"]) == 8
    assert graph.saved_bytes(["left", "right"]) == 9
    assert graph.saved_bytes(["head"]) == 16  # l and its view, r
    assert graph.saved_bytes() == 3 + 8 + 1 + 16


def test_a_tensor_crosses_a_cut_once() -> None:
    read, given = tied_model().crossing(["left", "right"])
    assert read == {"x"} and given == {"l", "l.t", "r"}
    read, given = tied_model().crossing(["embed"])
    assert not read and given == {"x"}


def test_edges_name_their_tensors_and_the_order_follows_them() -> None:
    graph = tied_model()
    assert graph.graph.edges["left", "head"]["tensors"] == ("l", "l.t")
    assert graph.order == ("embed", "left", "right", "head")


@pytest.mark.parametrize(("operators", "message"), [
    ((), "has no operators"),
    ((Operator("a", "x", WORK, inputs=("ghost",)),), "operator 'a': reads 'ghost', which nothing produces"),
    ((Operator("a", "x", WORK), Operator("a", "x", WORK)), "the operator name 'a' is used twice"),
    ((Operator("a", "x", WORK, inputs=("q",), outputs=(Tensor("p", 1),)),
      Operator("b", "x", WORK, inputs=("p",), outputs=(Tensor("q", 1),))), "in a cycle: a -> b -> a"),
    ((Operator("a", "x", WORK, parameters=(TABLE,)),
      Operator("b", "x", WORK, parameters=(Parameter("table", 1, 2),))), "'table' is of another size"),
    ((Operator("a", "x", WORK, outputs=(Tensor("p", 1, base="p"),)),), "is a view of itself"),
])
def test_a_graph_that_means_nothing_is_refused_by_name(operators: tuple[Operator, ...], message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        OperatorGraph("model", operators)


def test_amounts_and_names_are_checked_where_they_stand() -> None:
    with pytest.raises(OperatorError, match="flops is -1"):
        Work(flops=-1)
    with pytest.raises(OperatorError, match="tensor 't': bytes is -2"):
        Tensor("t", -2)
    with pytest.raises(OperatorError, match="keeps 'z', which is none of its"):
        Operator("a", "x", WORK, keeps=("z",))
    with pytest.raises(OperatorError, match="split 'heads' names 'w', which it does not have"):
        Operator("a", "x", WORK, splits=(Split("heads", 4, parameters=frozenset({"w"})),))
